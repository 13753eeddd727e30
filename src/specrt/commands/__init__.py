"""One file a command: `add` declares its options, `run` calls one function and prints."""
