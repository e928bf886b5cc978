/*
 * Forms of products: how the weights of a shape are multiplied, where a device has more than one
 * way that gives other last bits. They are chosen once, by measuring (ek_backend.choose), and every
 * device that computes the model gets the same table, so that a request that is computed again by
 * another engine finds its forms. Plain data: it goes to other processes and into a file.
 */
#pragma once

#include <stdint.h>

#define EK_MOST_FORMS 64u
#define EK_FORM_NAME  24u

struct ek_form {
    uint32_t dtype, graph; /* enum ek_dtype of the weight, and of what the model computes in */
    uint32_t rows, cols,
        group;               /* of the weight as one rank has it; group: columns with one scale */
    char name[EK_FORM_NAME]; /* the backend's name for it */
    double times;            /* as fast as what it would be without a choice */
};

/* Of shapes that are not in it nothing is chosen. Those that choose() was asked about come first.
 */
struct ek_forms {
    uint32_t count, used;
    uint32_t measured; /* by this process */
    struct ek_form form[EK_MOST_FORMS];
};
