/* What one finding says of itself, see finding.h. */
#include "supervisor/doctor/finding.h"

#include <string.h>

#include "supervisor/doctor/trace.h"

void doctor_finding_keep(struct doctor_finding *f, uint64_t line, const char *text)
{
    uint32_t i =
        f->evidence_count < DOCTOR_EVIDENCE_MOST ? f->evidence_count++ : DOCTOR_EVIDENCE_MOST - 1;
    f->evidence[i].line = line;
    doctor_trace_copy(text, strlen(text), f->evidence[i].text, DOCTOR_EVIDENCE_TEXT);
}

bool doctor_finding_engine(const struct doctor_numbers *n, uint32_t *ret_at)
{
    double x = 0;

    if (!doctor_numbers_lookup(n, "engine", &x) || !(x >= 0 && x < UINT32_MAX))
        return false;
    *ret_at = (uint32_t)x % DOCTOR_ENGINES;
    return true;
}

bool doctor_finding_often(const struct doctor_finding *f, const struct doctor_signature *s)
{
    uint32_t at, most = 0;

    if (!doctor_finding_engine(&f->numbers, &at))
        return f->count >= s->times;
    for (uint32_t i = 0; i < DOCTOR_ENGINES; i++)
        most = f->of_engine[i] > most ? f->of_engine[i] : most;
    return most >= s->times;
}
