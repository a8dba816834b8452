"""What README.md and docs/python.md show of the layer without PyTorch runs."""

import documents


def test_blocks():
    readme, page = documents.blocks(with_torch=False)
    assert documents.run(readme).split() == ["[", "1.", "3.", "6.", "10.", "14.", "10.", "30.", "60.]"]
    documents.run(page)
