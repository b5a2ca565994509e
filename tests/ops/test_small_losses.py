"""Losses that ordinary inputs do not show: a finite minus infinity in a mask, and sums that stall in half precision."""

from functools import partial

import numpy as np
import pytest

from derived.ops.attention import attention
from derived.ops.embedding import embedding_vjp
from derived.ops.tiled import tiled_attention
from tests.support.voices import VOICES, to_numpy


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("lowest", [-10_020.0, -1e9, -1e300])
@pytest.mark.parametrize("f", [attention, partial(tiled_attention, B_q=1, B_t=1)], ids=["full", "tiled"])
def test_a_masked_key_stays_out_however_low_the_others_score(f, lowest, array):
    # with −1e4 written over the masked score, key 0 would win against −10,020 (huggingface/transformers#17306)
    q, k, v = np.array([[1.0]]), np.array([[0.0], [lowest]]), np.array([[1.0], [3.0]])
    o = f(array(q), array(k), array(v), mask=array(np.array([[False, True]])))
    assert to_numpy(o) == 3


def test_gradients_of_one_token_add_up_in_numpys_float16():
    # 4,099 times 1/16 is 256.2; added one by one in float16 the sum stops at 128, where half a unit is 1/16
    dy = np.full((4099, 3), 1 / 16, dtype=np.float16)
    dtable = embedding_vjp(np.zeros(4099, dtype=np.int64), np.zeros((2, 3), dtype=np.float16))[1](dy)
    np.testing.assert_array_equal(dtable, [[np.float16(4099 / 16)] * 3, [0] * 3])
    stalled = np.float16(0)
    for step in dy[:, 0]:
        stalled = np.float16(stalled + step)
    assert stalled == 128
