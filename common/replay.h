/*
 * The limits that a replay may run with (evenkeel-bench replay, evenkeelctl postmortem --replay):
 * how large each may be, and the rows of a table of options that set them.
 */
#pragma once

#define EK_REPLAY_SEQS   4096u
#define EK_REPLAY_TOKENS (1u << 20)
#define EK_REPLAY_BLOCKS (1u << 24)

#define EK_REPLAY_ROW(flag, field, most, text)                                                     \
    {                                                                                              \
        .name = flag, .type = OPT_UINT, .at = AT(field), .max = most, .def = "0", .help = text     \
    }
/* Needs AT() and the fields max_seqs, max_tokens and blocks; 0 is what was recorded, as `first`,
 * the help of the first row, says for all. */
#define EK_REPLAY_ROWS(first)                                                                      \
    EK_REPLAY_ROW("max-num-seqs", max_seqs, EK_REPLAY_SEQS, first),                                \
        EK_REPLAY_ROW("max-num-batched-tokens", max_tokens, EK_REPLAY_TOKENS,                      \
                      "Tokens in one step."),                                                      \
        EK_REPLAY_ROW("num-gpu-blocks-override", blocks, EK_REPLAY_BLOCKS,                         \
                      "Blocks of the KV cache.")
