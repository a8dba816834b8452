"""packjit for PyTorch, 2.4 or newer: operators with autograd on packed sequences, drop-ins, and models of them."""

from packjit.torch.functional import causal_conv1d_fn, conv1d_pack, selective_scan_fn, ssm_pack
from packjit.torch.language_model import CONFIGURATIONS, MambaConfig, MambaLM
from packjit.torch.loss import linear_cross_entropy, next_token_targets
from packjit.torch.mamba import Mamba
from packjit.torch.sequence_map import SequenceMap

__all__ = ["CONFIGURATIONS", "Mamba", "MambaConfig", "MambaLM", "SequenceMap", "causal_conv1d_fn", "conv1d_pack",
           "linear_cross_entropy", "next_token_targets", "selective_scan_fn", "ssm_pack"]
