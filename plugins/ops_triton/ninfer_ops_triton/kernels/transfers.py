"""Images of pages and state slots, straight between the planes and pinned host memory."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib


@triton.jit(do_not_specialize=["count", "pieces_of_unit"])
def move_units(
    pool,
    pieces,
    moves,
    host,
    count,
    pieces_of_unit,
    BLOCK: tl.constexpr,
    GATHER: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """Every piece of every move, a program at a time; neighbouring programs move neighbouring
    pieces. ``pool`` and ``host`` are u8, ``pieces`` i64[Q, 4], ``moves`` i64[N, 2]; BLOCK words of
    four bytes hold a piece, GATHER says that the host is written.

    ``moves`` lies in host memory and is read anew each time. All else is read once: it would only
    push weights out of the cache.
    """
    lib.release_dependents(PDL)
    lib.await_inputs(PDL)
    words = tl.arange(0, BLOCK)
    pool_words = pool.to(tl.pointer_type(tl.int32))
    host_words = host.to(tl.pointer_type(tl.int32))
    program, programs = tl.program_id(0), tl.num_programs(0)
    for work in range(program, count * pieces_of_unit, programs):
        move = work // pieces_of_unit
        piece = pieces + 4 * (work - move * pieces_of_unit)
        unit = tl.load(moves + 2 * move, volatile=True)
        image = tl.load(moves + 2 * move + 1, volatile=True)
        start, stride = tl.load(piece), tl.load(piece + 1)
        place, size = tl.load(piece + 2), tl.load(piece + 3)
        # Hints of what the contract promises, so that a thread moves sixteen bytes at a time.
        on_device = pool_words + tl.multiple_of((start + unit * stride) // 4, 4)
        on_host = host_words + tl.multiple_of((image + place) // 4, 4)
        inside = words < tl.multiple_of((size // 4).to(tl.int32), 4)
        if GATHER:
            moved = tl.load(on_device + words, inside, eviction_policy="evict_first")
            tl.store(on_host + words, moved, inside, eviction_policy="evict_first")
        else:
            moved = tl.load(on_host + words, inside, eviction_policy="evict_first")
            tl.store(on_device + words, moved, inside, eviction_policy="evict_first")
