"""Other engines in a benchmark: each in processes of its own, asked what specrt is asked."""
