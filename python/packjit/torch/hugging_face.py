"""Packed batches for the Mamba of Hugging Face's transformers (5.x)."""

from __future__ import annotations

import functools

import torch
from torch import nn

from packjit.errors import BadArgument
from packjit.torch.loss import next_token_targets
from packjit.torch.mamba import as_sequence_map, mix
from packjit.torch.sequence_map import SequenceMap


def patch_mamba(model: nn.Module) -> nn.Module:
    """Gives a transformers MambaForCausalLM (or MambaModel) packed batches, in place; returns it.

        model = patch_mamba(MambaForCausalLM.from_pretrained(name))
        loss = model(input_ids, position_ids=position_ids, labels=labels).loss

    Its forward then takes one of position_ids (batch, seqlen; 0, 1, 2... anew in each sequence, negative is padding),
    seq_map, cu_seqlens or seq_idx. Its weights stay where they are, so a trainer, a checkpoint or a state dict sees no
    difference. No label is predicted from another sequence: with labels, position_ids are needed, and a label is
    ignored (-100) unless its position is one more than that of the token before. A Trainer counts the labels of a step
    (num_items_in_batch) before the model sees them, so there the collator has to set those to -100; BadArgument where
    it did not, since the loss would be too small. shift_labels, which say what each token has to predict, are used as
    they are. Without boundaries, the model is what it was: for generation, for example. Packed
    calls keep no cache and take no attention_mask: padding is a negative position. Not for nn.DataParallel, whose
    copies would use the first GPU's parameters: take DistributedDataParallel. Raises ValueError where the model
    has no Mamba mixer, or one with another activation than SiLU.
    """
    mixers = [module for module in model.modules() if type(module).__name__ == "MambaMixer"]
    if not mixers:
        raise ValueError(f"patch_mamba: {type(model).__name__} has no MambaMixer; it takes transformers' "
                         "MambaForCausalLM or MambaModel")
    for mixer in mixers:
        if mixer.activation not in ("silu", "swish"):
            raise ValueError(f"patch_mamba: the model's hidden_act is {mixer.activation!r}; the convolution has SiLU "
                             "only")
    # The model inside a language model, too: called by itself it would not see boundaries that it was given.
    models = {model, *[module for module in model.modules() if type(module).__name__ == "MambaModel"]}
    for module, forward in (*[(each, _model_forward) for each in models], *[(each, _mixer_forward) for each in mixers]):
        module.forward = functools.partial(forward, module)  # its class keeps the one that is called without boundaries
    if hasattr(model, "prepare_inputs_for_generation"):
        model.prepare_inputs_for_generation = functools.partial(_generation_inputs, model)
    return model


def _generation_inputs(self, input_ids, inputs_embeds=None, **kwargs):
    """generate() makes position_ids for every model whose forward takes some: those are no packed batch."""
    inputs = type(self).prepare_inputs_for_generation(self, input_ids, inputs_embeds=inputs_embeds, **kwargs)
    inputs.pop("position_ids", None)
    return inputs


def _mixer_forward(self, hidden_states, *args, attention_mask=None, **kwargs):
    if isinstance(attention_mask, SequenceMap):
        return mix(self, hidden_states, attention_mask)
    return type(self).forward(self, hidden_states, *args, attention_mask=attention_mask, **kwargs)


def _model_forward(self, input_ids=None, *args, position_ids=None, seq_map=None, cu_seqlens=None, seq_idx=None,
                   labels=None, attention_mask=None, **kwargs):
    original = type(self).forward
    if all(form is None for form in (position_ids, seq_map, cu_seqlens, seq_idx)):
        # What is named here, so that a Trainer keeps these columns of a data set, may have come in `args`.
        kwargs.update({name: value for name, value in (("labels", labels), ("attention_mask", attention_mask))
                       if value is not None})
        return original(self, input_ids, *args, **kwargs)
    if args:
        raise TypeError("a packed batch takes only input_ids without a name; give the other arguments by name")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("a packed batch was given an attention_mask that hides tokens: say padding by negative "
                         "position_ids instead")
    if labels is not None:
        kwargs["labels"] = labels
    if labels is not None and kwargs.get("shift_labels") is None:
        if position_ids is None:
            raise ValueError("labels of a packed batch need position_ids, which say where a label would cross "
                             "sequences; or compute the loss from the logits")
        if labels.shape != position_ids.shape:
            raise BadArgument(f"labels have shape {tuple(labels.shape)}, expected position_ids' (batch, seqlen), "
                              f"{tuple(position_ids.shape)}")
        # transformers shifts: the logits of token t are compared with label t + 1.
        predicted = next_token_targets(labels, position_ids)[1].roll(1, 1) > 0
        if kwargs.get("num_items_in_batch") is not None and bool((~predicted & (labels != -100))[:, 1:].any()):
            raise BadArgument("num_items_in_batch was counted with labels that no token of their sequence predicts: "
                              "set labels to -100 where position_ids are not one more than those of the token before, "
                              "at every start of a sequence and in padding, before they are counted: in the collator")
        kwargs["labels"] = torch.where(predicted, labels, -100)
    tokens = input_ids if input_ids is not None else kwargs["inputs_embeds"]
    kwargs["use_cache"] = False
    # attention_mask is the one argument that transformers hands down to every mixer as it is, also when a checkpointed
    # layer is run again.
    return original(self, input_ids, attention_mask=as_sequence_map(tokens, seq_map, position_ids, cu_seqlens, seq_idx),
                    **kwargs)
