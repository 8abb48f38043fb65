"""The experiment engine: traffic in, measured trials out. Knows no Django, SQL, torch or vllm."""
