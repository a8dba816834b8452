"""transformers' Mamba: a third witness for the packed model, and packed itself by patch_mamba."""

import copy
import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # the models are made here; read when transformers is imported
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packed_models import (CONFIG, Adapter, assert_close, error, gradients_of, model_of, random_rows,  # noqa: E402
                           real_rows, run_one_at_a_time, run_packed, tokens_of)

from packjit.errors import BadArgument  # noqa: E402
from packjit.torch import SequenceMap  # noqa: E402
from packjit.torch.hugging_face import patch_mamba  # noqa: E402

FP32_BOUND = 1e-5


def theirs_of(model):
    """transformers' model with the same weights; its convolution and scan are loops in PyTorch here."""
    config = transformers.MambaConfig(vocab_size=CONFIG.padded_vocab_size, hidden_size=CONFIG.d_model, state_size=16,
                                      num_hidden_layers=CONFIG.n_layer)
    theirs = transformers.MambaForCausalLM(config)
    theirs.load_state_dict({name.replace("embedding.", "embeddings."): tensor
                            for name, tensor in model.state_dict().items()}, strict=True)
    return theirs.train()


def renamed(result):
    return (*result[:2], {name.replace("embeddings.", "embedding."): gradient for name, gradient in result[2].items()})


@pytest.mark.parametrize("rows", [random_rows, real_rows])
def test_packed_equals_transformers_one_at_a_time(rows):
    positions, model = rows(), model_of()
    theirs, ids = theirs_of(model), tokens_of(positions)
    expected = renamed(run_one_at_a_time(lambda part: theirs(part).logits, theirs, ids, positions))
    assert_close(run_packed(model, ids, positions), expected, FP32_BOUND)


def test_patched_model_trains_on_packs():
    positions, model = random_rows(), model_of()
    theirs, ids = theirs_of(model), tokens_of(positions)
    expected = renamed(run_one_at_a_time(lambda part: theirs(part).logits, theirs, ids, positions))
    before = {name: tensor.data_ptr() for name, tensor in theirs.state_dict().items()}
    assert patch_mamba(patch_mamba(theirs)) is theirs
    assert {name: tensor.data_ptr() for name, tensor in theirs.state_dict().items()} == before

    for checkpointed in (False, True):  # a checkpointed layer is run again in the backward, with the same boundaries
        if checkpointed:
            theirs.gradient_checkpointing_enable()
        theirs.zero_grad()
        output = theirs(ids, position_ids=positions, labels=ids)
        output.loss.backward()
        logits = output.logits.detach() * (positions >= 0)[..., None]
        assert_close(renamed((logits, output.loss.detach(), gradients_of(theirs))), expected, FP32_BOUND)


def test_patched_model_takes_every_form_and_is_itself_without():
    positions, model = random_rows(), model_of()
    theirs, ids = theirs_of(model).eval(), tokens_of(positions)
    with torch.no_grad():
        whole = theirs(ids[:, :9]).logits
        patch_mamba(theirs)
        assert torch.equal(theirs(ids[:, :9]).logits, whole)
        assert torch.equal(theirs(ids[:, :9], torch.ones_like(ids[:, :9])).logits, whole)
        packed = theirs(ids, position_ids=positions).logits
        assert torch.equal(packed, theirs(ids, seq_map=SequenceMap.from_position_indices(positions)).logits)
        assert error(packed[1, 3:12], theirs(ids[1:, 3:12]).logits[0]) < FP32_BOUND
        embedded = theirs(inputs_embeds=theirs.get_input_embeddings()(ids), position_ids=positions)
        assert torch.equal(packed, embedded.logits)
        inner = theirs.backbone(ids, position_ids=positions).last_hidden_state
        assert torch.equal(packed, theirs.lm_head(inner.to(theirs.lm_head.weight.dtype)).float())
        grown = theirs.generate(ids[:1, :4], max_new_tokens=3, do_sample=False)
    assert grown.shape == (1, 7)


@pytest.mark.parametrize("patched_first", [False, True])
def test_adapters_of_a_patched_model_work_and_learn(patched_first):
    theirs, ids = theirs_of(model_of()).eval(), torch.arange(8)[None]
    if patched_first:
        patch_mamba(theirs)
    mixer = theirs.backbone.layers[0].mixer
    mixer.x_proj = Adapter(mixer.x_proj)
    expected = theirs(ids).logits
    assert error(patch_mamba(theirs)(ids, position_ids=ids).logits, expected) < FP32_BOUND
    theirs(ids, position_ids=ids, labels=ids).loss.backward()
    assert mixer.x_proj.up.grad.abs().sum() > 0
    mixer.dt_proj = Adapter(mixer.dt_proj)  # transformers itself may read no more than its weight
    adapted = theirs(ids, position_ids=ids).logits
    mixer.dt_proj = mixer.dt_proj.merged()
    assert error(adapted, theirs(ids).logits) < FP32_BOUND


def loss_by_hand(theirs, ids, positions, pairs):
    """The mean over (row, token, label) of what the packed logits say of them."""
    logits = theirs(ids, position_ids=positions).logits.log_softmax(-1)
    return -sum(logits[pair] for pair in pairs) / len(pairs)


def test_a_label_is_predicted_from_the_token_before_it_in_its_sequence_alone():
    """A row that begins with padding and goes on with a sequence has, like a start, a token that nothing predicts."""
    positions = torch.tensor([[-1, 3, 4, 5, -1, -1, 0, 1]])
    theirs, ids = patch_mamba(theirs_of(model_of())), torch.arange(8)[None]
    expected = loss_by_hand(theirs, ids, positions, [(0, 1, 2), (0, 2, 3), (0, 6, 7)])
    assert error(theirs(ids, position_ids=positions, labels=ids).loss, expected) < FP32_BOUND


def test_labels_that_were_counted_before_they_were_dropped_are_refused():
    """As a Trainer counts them: all of columns 1 on that are not -100."""
    positions, ids = torch.tensor([[0, 1, 2, 0, 1, -1]]), torch.arange(6)[None]
    theirs = patch_mamba(theirs_of(model_of()))
    with pytest.raises(BadArgument, match="set labels to -100 .* in the collator"):
        theirs(ids, position_ids=positions, labels=ids, num_items_in_batch=torch.tensor(5))
    collated = torch.tensor([[0, 1, 2, -100, 4, -100]])  # nobody counts the first of a row
    expected = loss_by_hand(theirs, ids, positions, [(0, 0, 1), (0, 1, 2), (0, 3, 4)])
    for options in ({}, {"num_items_in_batch": torch.tensor(3)}):
        assert error(theirs(ids, position_ids=positions, labels=collated, **options).loss, expected) < FP32_BOUND
    shifted = torch.tensor([[1, 2, -100, 4, -100, -100]])
    found = theirs(ids, position_ids=positions, labels=ids, shift_labels=shifted, num_items_in_batch=3).loss
    assert error(found, expected) < FP32_BOUND


def test_generation_is_that_of_the_model_without_the_patch():
    theirs = theirs_of(model_of()).eval()
    ids = tokens_of(random_rows())[:, :6]
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    patched = patch_mamba(copy.deepcopy(theirs))
    for options in ({"attention_mask": mask}, {"attention_mask": mask, "use_cache": False}, {}):
        grown = [model.generate(ids, max_new_tokens=3, do_sample=False, output_logits=True,
                                return_dict_in_generate=True, **options) for model in (theirs, patched)]
        assert torch.equal(grown[0].sequences, grown[1].sequences)
        assert all(error(*pair) < FP32_BOUND for pair in zip(*[of.logits for of in grown]))


def test_a_copy_of_a_patched_model_is_a_model_of_its_own():
    positions, theirs = random_rows(), patch_mamba(theirs_of(model_of())).eval()
    ids = tokens_of(positions)
    copied = copy.deepcopy(theirs)
    with torch.no_grad():
        before = theirs(ids, position_ids=positions).logits, theirs(ids[:, :3]).logits
        for parameter in theirs.parameters():
            parameter.zero_()
        assert torch.equal(copied(ids, position_ids=positions).logits, before[0])
        assert torch.equal(copied(ids[:, :3]).logits, before[1])


def test_patch_refuses_what_it_cannot_do():
    positions, theirs = random_rows(), patch_mamba(theirs_of(model_of()))
    ids = tokens_of(positions)
    with pytest.raises(ValueError, match="attention_mask that hides tokens"):
        theirs(ids, position_ids=positions, attention_mask=(positions >= 0).long())
    with pytest.raises(ValueError, match="labels of a packed batch need position_ids"):
        theirs(ids, seq_map=SequenceMap.from_position_indices(positions), labels=ids)
    with pytest.raises(ValueError, match=r"labels have shape \(1, 24\), expected position_ids' .*, \(2, 24\)"):
        theirs(ids, position_ids=positions, labels=ids[:1])
    with pytest.raises(TypeError, match="a packed batch takes only input_ids without a name"):
        theirs(ids, None, position_ids=positions)
    with pytest.raises(ValueError, match="Linear has no MambaMixer"):
        patch_mamba(torch.nn.Linear(2, 2))
