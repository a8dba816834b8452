"""What README.md and docs/python.md show of packjit.torch runs."""

import documents


def test_blocks():
    found = documents.blocks(with_torch=True)
    assert len(found) == 2
    for block in found:
        documents.run(block)
