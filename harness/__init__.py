"""Launch and validation harness for sequence packing in Megatron training."""

__version__ = "0.1.0"
