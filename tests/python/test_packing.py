"""packjit.packing: steps as NumPy arrays."""

import copy
import json
import pickle
import random
import threading

import numpy as np
import pytest

from packjit.errors import BadArgument
from packjit.packing import METHODS, PIECE, Packer

LENGTHS = [1 + i * 37 % 41 for i in range(60)]  # 1262 tokens
TOKENS = np.arange(sum(LENGTHS), dtype=np.int32)


def one_epoch(packer):
    return list(packer)


def test_a_document_in_three_steps_with_all_its_arrays():
    packer = Packer([10], 4, rows=2, loss_unit="document")
    assert (packer.steps, packer.max_seqlen, packer.max_sequences) == (3, 4, 2)
    first, second, third = one_epoch(packer)
    assert [step.pieces.tolist() for step in (first, second, third)] == [
        [(0, 0, 4, 0, 0, 1, -1, -1)], [(0, 4, 4, 0, 0, 1, 0, 0)], [(0, 8, 2, 0, 0, 0, 1, 0)]]
    assert (third.epoch, third.step, third.steps, third.tokens, third.max_seqlen) == (0, 2, 3, 2, 2)
    assert third.position_indices.tolist() == [[0, 1, -1, -1], [-1] * 4] and third.position_indices.dtype == np.int32
    assert third.seq_idx.tolist() == [[0, 0, -1, -1], [-1] * 4] and third.seq_idx.dtype == np.int32
    assert third.cu_seqlens.tolist() == [0, 2, 4, 8] and third.cu_seqlens.dtype == np.int64
    assert third.document_ids.tolist() == [[0, 0, -1, -1], [-1] * 4]
    assert third.document_offsets.tolist() == [[8, 9, -1, -1], [-1] * 4]
    np.testing.assert_array_equal(third.loss_weights, np.array([[1 / 9, 0, 0, 0], [0] * 4], np.float32))


def test_targets_cross_a_cut_and_end_with_the_document():
    steps = one_epoch(Packer([3, 10], 4, method="next-fit"))
    tokens = np.arange(100, 113, dtype=np.uint16)
    for step in steps:
        batch, targets = step.gather(tokens, padding=7), step.targets(tokens)
        assert batch.dtype == np.uint16 and targets.dtype == np.int64
        for row, column in np.ndindex(batch.shape):
            document, offset = step.document_ids[row, column], step.document_offsets[row, column]
            begin, length = [(100, 3), (103, 10)][max(document, 0)]
            expected = begin + offset if document >= 0 else 7
            assert batch[row, column] == expected
            assert targets[row, column] == (expected + 1 if document >= 0 and offset + 1 < length else -100)
            assert (step.loss_weights[row, column] > 0) == (targets[row, column] >= 0)


@pytest.mark.parametrize("method", METHODS)
def test_ranks_together_have_every_token_once_an_epoch(method):
    for epoch in range(2):
        seen, shapes, counts = [], set(), set()
        for rank in range(3):
            packer = Packer(LENGTHS, 16, method=method, rows=2, rank=rank, ranks=3)
            packer.set_epoch(epoch)
            steps = one_epoch(packer)
            counts.add(len(steps))
            for step in steps:
                assert step.epoch == epoch
                assert len(step.pieces) <= packer.max_sequences and step.max_seqlen <= packer.max_seqlen
                shapes |= {getattr(step, name).shape for name in
                           ("position_indices", "seq_idx", "document_ids", "document_offsets", "loss_weights")}
                seen.append(step.gather(TOKENS, padding=-1).ravel())
        assert shapes == {(2, 16)} and len(counts) == 1
        seen = np.concatenate(seen)
        np.testing.assert_array_equal(np.sort(seen[seen >= 0]), TOKENS)


def test_limits_of_maps_hold_for_every_form_of_boundaries():
    """With cu_seqlens the padding of a row is an interval, which may be one too many and longer than any piece."""
    drawn, beyond = random.Random(0), 0
    for _ in range(100):
        lengths = [drawn.choice([1, 2, 3, 5, 8, 20, 33]) for _ in range(drawn.randint(1, 30))]
        rows, pack_length, ranks = drawn.choice([1, 2, 3]), drawn.choice([4, 8, 16, 32]), drawn.choice([1, 2, 4])
        method = drawn.choice(METHODS)
        for rank in range(ranks):
            packer = Packer(lengths, pack_length, method=method, rows=rows, rank=rank, ranks=ranks)
            for step in (*packer, *packer):
                assert len(step.pieces) <= packer.max_sequences and step.position_indices.max() < packer.max_seqlen
                intervals = np.diff(step.cu_seqlens)
                assert len(intervals) <= packer.max_sequences + rows and intervals.max() <= pack_length
                beyond += len(intervals) > packer.max_sequences or intervals.max() > packer.max_seqlen
    assert beyond > 0


def test_divided_in_turn_each_rank_has_every_other_document_of_the_order():
    documents = [set(), set()]
    for rank in range(2):
        packer = Packer(LENGTHS, 16, rank=rank, ranks=2, division="round-robin")
        for step in packer:
            documents[rank] |= set(step.pieces["document"].tolist())
    assert [len(mine) for mine in documents] == [30, 30] and not documents[0] & documents[1]
    tokens = sorted(sum(LENGTHS[document] for document in mine) for mine in documents)
    assert tokens[1] - tokens[0] > 1  # balanced, 1262 are 631 and 631


def test_states_by_document_are_handed_over_as_the_pieces_say():
    packer = Packer(LENGTHS, 16, rows=2, min_piece=3)
    ends, slots, handed = {}, {}, 0
    for step in packer:
        for slot, piece in enumerate(step.pieces):
            document = int(piece["document"])
            if piece["from_step"] >= 0:
                assert ends.pop(document) == piece["offset"]
                assert slots[document] == (piece["from_step"], piece["from_slot"])
                handed += 1
            else:
                assert piece["offset"] == 0
            if piece["more"]:
                ends[document] = piece["offset"] + piece["length"]
                slots[document] = (step.step, slot)
    assert not ends and handed > 30


def test_an_epoch_comes_in_another_order_and_the_seed_decides():
    packer = Packer(LENGTHS, 64)
    first, second = one_epoch(packer), one_epoch(packer)
    again = one_epoch(Packer(LENGTHS, 64))
    other = one_epoch(Packer(LENGTHS, 64, seed=1))
    order = [np.concatenate([step.pieces["document"] for step in steps]).tolist()
             for steps in (first, again, second, other)]
    assert order[0] == order[1] and order[0] != order[2] and order[0] != order[3]


def test_resumed_it_goes_on_as_if_nothing_had_happened():
    packer = Packer(LENGTHS, 16, rank=1, ranks=2, seed=5)
    for _ in range(packer.steps + 4):
        packer.next()
    state = json.loads(json.dumps(packer.state_dict()))
    assert (state["epoch"], state["step"]) == (1, 4)
    resumed = Packer(LENGTHS, 16, rank=1, ranks=2, seed=5)
    resumed.load_state_dict(state)
    left = [step.step for step in resumed]
    assert left == list(range(4, resumed.steps))
    resumed.load_state_dict(state)
    for _ in range(30):
        a, b = packer.next(), resumed.next()
        assert (a.epoch, a.step) == (b.epoch, b.step)
        np.testing.assert_array_equal(a.pieces, b.pieces)


def test_a_state_of_others_is_refused_and_nothing_changes():
    packer = Packer(LENGTHS, 16)
    packer.next()
    for bad in (Packer(LENGTHS, 17).state_dict(), Packer(LENGTHS, 16, loss_unit="document").state_dict(),
                {**packer.state_dict(), "epoch": -1}, {**packer.state_dict(), "step": 10**6}, {"epoch": 0}):
        with pytest.raises(BadArgument):
            packer.load_state_dict(bad)
    assert packer.next().step == 1


@pytest.mark.parametrize("name, number", [("epoch", 2**64), ("epoch", 2**63 - 1), ("step", 2**64 + 1),
                                          ("fingerprint", 2**64)])
def test_a_number_too_large_for_a_state_is_not_cut_to_another(name, number):
    packer = Packer(LENGTHS, 16)
    with pytest.raises(BadArgument, match=f"expected .*{name}.* from 0 to .*found {number}"):
        packer.load_state_dict({**packer.state_dict(), name: number})
    assert packer.state_dict()["step"] == 0


def test_breaks_and_slack():
    def ends(**options):
        steps = one_epoch(Packer([3, 10], 4, breaks=[[], [3, 7]], **options))
        pieces = np.concatenate([step.pieces for step in steps])
        return sorted((pieces["offset"] + pieces["length"])[pieces["document"] == 1].tolist())

    assert ends() == [3, 7, 10]
    assert ends(cut_slack=0) == [4, 8, 10]
    assert ends(cut_slack=1) == [3, 7, 10]
    assert Packer([3], 4, breaks=[[]]).next().tokens == 3


def test_statistics_count_whole_steps():
    found = Packer([10, 1], 4, rows=2, ranks=2).statistics()
    assert (found["tokens"], found["slots"], found["documents_cut"], found["pieces"]) == (11, 48, 1, 4)
    assert found["fill_rate"] == 11 / 48 and found["mean_handover_distance"] == 1


def test_arrays_outlive_the_next_step_and_the_packer():
    packer = Packer([10], 4)
    first = packer.next()
    packer.next()
    del packer
    assert first.pieces.dtype == PIECE and first.document_offsets.tolist() == [[0, 1, 2, 3]]


def test_packers_are_not_copied():
    """A copy would have the handle of a packer that may be gone."""
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a packjit Packer cannot be copied or pickled"):
            copied(Packer(LENGTHS, 16))


def test_threads_share_the_steps_of_a_packer():
    packer = Packer(LENGTHS, 16)
    found = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(packer.next() for _ in range(20)))
               for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [(step.epoch, step.step) for mine in found for step in mine]
    assert len(set(places)) == 80


@pytest.mark.parametrize("arguments, options, message", [
    (([], 4), {}, "count is 0"),
    (([1, -2], 4), {}, "document 1: length must be from 1 to 2147483647, found -2"),
    (([1, 0], 4), {}, "document 1: length must be from 1"),
    (([1.5], 4), {}, "lengths has shape (1,) and dtype float64, expected a list of integers"),
    (([[1]], 4), {}, "lengths has shape (1, 1)"),
    (([1], 0), {}, "pack_length is 0, expected at least 1"),
    (([1], 2**64 + 4), {}, "less than 2**63"),
    (([1], 4), {"method": "best"}, "there is no method 'best'; the methods are next-fit"),
    (([1], 4), {"method": None}, "there is no method 'None'"),
    (([1], "4"), {}, "pack_length is '4', expected an integer"),
    (([1], 4), {"rows": 1.0}, "rows is 1.0, expected an integer"),
    (([1], 4), {"loss_unit": ["token"]}, "loss_unit is ['token'], expected one of token, document"),
    (([9], 4), {"breaks": [3]}, "breaks has shape () and dtype int64, expected a list of integers"),
    (([1], 4), {"rows": 0}, "rows is 0, expected at least 1"),
    (([1], 4), {"rows": 2**30}, "expected a product of at most 2147483647"),
    (([1], 4), {"rank": 1}, "rank must be from 0 to 0, found 1"),
    (([1], 4), {"rank": -1}, "rank is -1, expected at least 0"),
    (([1], 4), {"cut": 0}, "cut is 0, expected at least 1"),
    (([1], 4), {"cut": 5}, "cut must be from 1 to 4"),
    (([1], 4), {"open_packs": -1}, "open_packs is -1"),
    (([1], 4), {"window": 0}, "window is 0"),
    (([1], 4), {"min_piece": 3}, "minimum piece must be from 1 to 2"),
    (([1], 4), {"breaks": []}, "breaks of 0 documents, but 1 lengths"),
    (([9], 4), {"breaks": [[3, 2]]}, "found 2 after 3"),
    (([9], 4), {"breaks": [[9]]}, "breaks must increase and lie inside (0, 9)"),
    (([1], 4), {"loss_unit": "row"}, "loss_unit is 'row', expected one of token, document"),
    (([1], 4), {"last_token": "x"}, "last_token is 'x', expected one of dropped, counts"),
    (([1], 4), {"division": "fair"}, "division is 'fair', expected one of balanced, round-robin"),
])
def test_bad_input_is_refused_with_its_name(arguments, options, message):
    with pytest.raises(BadArgument) as failure:
        Packer(*arguments, **options)
    assert message in str(failure.value)


def test_numbers_of_any_integer_type_are_taken():
    packer = Packer([3, 4, 5], pack_length=np.array(8), seed=np.int64(3))
    packer.load_state_dict({name: np.array(value, np.uint64) for name, value in packer.state_dict().items()})
    assert packer.state_dict() == Packer([3, 4, 5], pack_length=8, seed=3).state_dict()
    with pytest.raises(TypeError, match="cannot resume: epoch is '0', expected an integer"):
        packer.load_state_dict({**packer.state_dict(), "epoch": "0"})



def test_tokens_that_are_not_those_of_the_lengths_are_refused():
    step = Packer([3, 5, 2, 9], 8).next()
    assert step.gather(list(range(19))).shape == (1, 8)
    for count in (18, 20):
        with pytest.raises(BadArgument, match="the documents have 19 tokens"):
            step.gather(np.arange(count))
        with pytest.raises(BadArgument, match="the documents have 19 tokens"):
            step.targets(np.arange(count))


def test_iterators_that_take_turns_end_with_the_epoch():
    packer = Packer([8, 8, 8, 8], 8)
    one, other = iter(packer), iter(packer)
    taken = [next(one), next(other), next(one), next(other)]
    assert [(step.epoch, step.step) for step in taken] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert list(one) == list(other) == []
