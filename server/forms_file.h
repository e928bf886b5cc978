/*
 * The file that keeps which form the products of each shape of weights have
 * (kernels/product_forms.h), so that a server that is started again computes with the same last
 * bits. Text, one line a shape:
 *
 *   evenkeel cpu forms 1
 *   cpu AMD EPYC 9654 96-Core Processor
 *   tier avx512bf16
 *   bfloat16 in bfloat16, 4864 x 896, group 0: avx512bf16 1.000
 *   sum 0badc0de
 *
 * The sum is the CRC 32 of all that stands before its line. Pure: start_forms.c has the file.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_buf;
struct ek_forms;

#define FORMS_FILE_MOST 16384u /* bytes */

/* What the forms were measured on. */
struct forms_about {
    const char *cpu, *tier;
};

int forms_file_write(const struct forms_about *about, const struct ek_forms *forms,
                     struct ek_buf *out); /* -ENOMEM */
/* NULL, or why the text is not taken, to be put behind "it is ": then *ret_forms is unchanged. */
const char *forms_file_read(const char *text, size_t len, const struct forms_about *about,
                            struct ek_forms *ret_forms);
/* Of what is used, which stands in the order of the graph; 0: nothing is. */
uint32_t forms_file_sum(const struct ek_forms *forms);
