"""Large input in blocks: where it is cut, what stays whole, and in which order answers come."""

from __future__ import annotations

import threading

import numpy as np

from steptime.physics.chunked_evaluation import BLOCK, Assembly, in_threads, split_blocks
from tests.conftest import each


def shapes(**given) -> list[dict[str, tuple[int, ...]]]:
    arrays = {name: np.broadcast_to(1.0, shape) for name, shape in given.items()}
    return [{name: array.shape for name, array in block.items()} for block in split_blocks(arrays)]


@each(
    "rows, columns, sizes",
    [
        (2 * BLOCK - 1, 1, [2 * BLOCK - 1]),  # less than two blocks are one
        (2 * BLOCK, 1, [BLOCK, BLOCK]),
        (2 * BLOCK + 1, 1, [BLOCK, BLOCK, 1]),
        (4, BLOCK, [1, 1, 1, 1]),
        (5, BLOCK // 2, [2, 2, 1]),
        (3, 10 * BLOCK, [1, 1, 1]),  # a row that is larger than a block is one
        (1, 4 * BLOCK, [1]),  # the first axis is the one that is cut
    ],
)
def test_where_input_is_cut(rows, columns, sizes):
    assert [block["a"][0] for block in shapes(a=(rows, columns))] == sizes
    assert all(block["a"][1] == columns for block in shapes(a=(rows, columns)))


def test_what_does_not_have_the_first_axis_stays_whole():
    blocks = shapes(a=(4, BLOCK), b=(BLOCK,), c=(1, BLOCK), d=(4, 1), e=())
    assert blocks == [{"a": (1, BLOCK), "b": (BLOCK,), "c": (1, BLOCK), "d": (1, 1), "e": ()}] * 4


def test_parts_of_an_assembly_are_arrays_along_its_axis_or_one_number():
    columns = Assembly(5, axis=1)
    columns.put(slice(2), {"a": np.arange(4.0).reshape(2, 2)})
    columns.put(slice(2, 5), {"a": np.ones((2, 3))})
    assert columns.arrays["a"].tolist() == [[0, 1, 1, 1, 1], [2, 3, 1, 1, 1]]
    numbers = Assembly(3)
    numbers.put(slice(2), {"a": np.asarray(2.0)})
    numbers.put(slice(2, 3), {"b": np.asarray(1.0)})
    assert (numbers.arrays["a"].tolist(), numbers.arrays["b"].tolist()) == ([2, 2, 0], [0, 0, 1])
    # The first values of an array give its dtype.
    numbers.put(slice(0, 1), {"count": np.asarray(2), "fits": np.asarray(True)})
    assert (numbers.arrays["count"].dtype, numbers.arrays["fits"].dtype) == (np.int64, bool)


def test_blocks_hold_what_the_whole_holds():
    whole = np.arange(3.0 * BLOCK).reshape(3, BLOCK)
    assert np.array_equal(np.concatenate([block["a"] for block in split_blocks({"a": whole})]), whole)


def test_answers_come_in_the_order_of_the_blocks():
    """The first waits for the last, if there are cores for both."""
    last = threading.Event()

    def answer(block):
        last.set() if block["n"] else last.wait(0.05)
        return block["n"]

    assert in_threads(answer, [{"n": n} for n in range(3)]) == [0, 1, 2]
