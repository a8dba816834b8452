"""packjit for PyTorch, 2.4 or newer: operators with autograd on packed sequences, drop-ins, and models on top of
them."""

from packjit.torch.functional import causal_conv1d_fn, conv1d_pack, selective_scan_fn, ssm_pack
from packjit.torch.sequence_map import SequenceMap

__all__ = ["SequenceMap", "causal_conv1d_fn", "conv1d_pack", "selective_scan_fn", "ssm_pack"]
