"""Parts of Megatron-Bridge that change the harness's models."""
