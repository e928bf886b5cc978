/*
 * What flows through shared memory in pieces: all products in tiles, and attention of prompts by
 * mma. A block has STAGES places of BYTES for pieces. While it computes with one, copies to all
 * others are under way; it meets at one barrier a piece, which says two things: what this piece
 * wants is there for all, and nobody reads the one before any more, whose place is filled next.
 *
 * attend_wgmma.cu has a pipeline of its own, since K of one tile and V of the one before travel
 * together there and wgmma reads by another path; latent.cu has no room for a second tile.
 */
#pragma once

#include "kernels/cuda/dev.cuh"

/*
 * fetch(stage, piece) begins the copies of a piece with async_16(), compute(stage, piece) uses
 * them, for pieces [first, end) in their order. All threads of a block come here; when they leave,
 * the last piece may still be read by others.
 */
template <int STAGES, int BYTES, class FETCH, class COMPUTE>
DEV void pipelined(unsigned char *stages, uint32_t first, uint32_t end, FETCH fetch,
                   COMPUTE compute)
{
    /* a piece behind the last is an empty group, so that as many are under way as ever */
    const auto begin = [&](uint32_t turn, uint32_t piece) {
        if (piece < end)
            fetch(stages + turn * BYTES, piece);
        async_commit();
    };

    for (uint32_t i = 0; i < STAGES - 1; i++)
        begin(i, first + i);
    for (uint32_t piece = first, turn = 0; piece < end; piece++, turn = (turn + 1) % STAGES) {
        async_wait<STAGES - 2>();
        __syncthreads();
        begin((turn + STAGES - 1) % STAGES, piece + STAGES - 1);
        compute(stages + turn * BYTES, piece);
    }
}
