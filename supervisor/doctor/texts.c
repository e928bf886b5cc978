/*
 * What the doctor says, in all languages (texts.h). Read by the doctor and by what prints its
 * findings.
 */
#include "supervisor/doctor/texts.h"

#define TEXT(name, en, zh) const char doctor_##name##_en[] = en, doctor_##name##_zh[] = zh;
#include "supervisor/doctor/texts.def"
