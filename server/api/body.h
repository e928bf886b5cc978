/* The whole body of an answer, in the form of the API that was asked. */
#pragma once

struct ek_buf;
struct generation;

/* Of a generation that is over and went well. */
void body_write(struct ek_buf *out, struct generation *g);
