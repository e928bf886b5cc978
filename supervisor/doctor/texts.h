/*
 * The texts of texts.def as constants, for tables of struct doctor_text. Called by the doctor and
 * by what prints its findings.
 */
#pragma once

#define TEXT(name, en, zh) extern const char doctor_##name##_en[], doctor_##name##_zh[];
#include "supervisor/doctor/texts.def"
#undef TEXT

/* An initializer of struct doctor_text. */
#define DOCTOR_TEXT(name)                                                                          \
    {                                                                                              \
        {                                                                                          \
            doctor_##name##_en, doctor_##name##_zh                                                 \
        }                                                                                          \
    }
