"""Getting a checkpoint from the Hugging Face hub: the few files export reads, never code."""

from pathlib import Path

from specrt.runtime.errors import SourceError

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "README.md",
    "*.safetensors",
    "model.safetensors.index.json",
)
NOT_NEEDED = ("original/*", "*/*", "consolidated*.safetensors", "adapter_model.safetensors")


def download(name: str) -> Path:
    """The local folder of the hub model "org/name", from the hub's own cache where it is there."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise SourceError(
            f"{name} is on the hub, which needs huggingface-hub; pip install specrt[export]"
        ) from None
    try:
        folder = snapshot_download(
            name, allow_patterns=list(FILES), ignore_patterns=list(NOT_NEEDED)
        )
    except LocalEntryNotFoundError:
        raise SourceError(
            f"{name}: no such folder here, and the hub cannot be reached; give a file or folder"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"{name} cannot be downloaded from the hub: {reason}") from None
    return Path(folder)
