/* A kernel that makes one mistake with wgmma, for the test of its emulation. */
#pragma once

enum wrong_kind {
    WRONG_NOT,         /* none */
    WRONG_NOT_VISIBLE, /* copies are not made visible */
    WRONG_TOO_EARLY,   /* made visible before they were waited for */
    WRONG_NO_WAIT,     /* read while they are under way */
    WRONG_NO_BARRIER,  /* read without a barrier behind that */
    WRONG_NO_FENCE,    /* registers without wgmma_fence() */
    WRONG_TOUCHED,     /* accumulators written while they are written */
    WRONG_A_TOUCHED,   /* registers of A written while they are read */
    WRONG_READ,        /* accumulators read before the wait */
    WRONG_OVERWRITTEN, /* a copy to what is being read */
    WRONG_REUSED,      /* a copy to what another thread may still read */
    WRONG_NOT_WAITED,  /* a thread leaves with products under way */
    WRONG_NOT_COPIED,  /* a descriptor of memory that nobody wrote */
    WRONG_BEYOND,      /* one that goes beyond the block's memory */
    WRONG_MISALIGNED,  /* a matrix that does not begin at a multiple of 1024 */
    WRONG_LANES,       /* lanes that say different things */
    WRONG_KINDS
};

#if defined(__cplusplus)
extern "C"
#endif
    /* 0 when what it computes is right. */
    int
    wgmma_wrong_run(int mistake);
