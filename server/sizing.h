/*
 * How large everything becomes: from options and the device's numbers to the engine's ceilings and
 * live limits and the memory plan; once all is loaded, the plan beside what was really taken.
 */
#pragma once

struct ek_fault;
struct ek_plan_request;
struct stack;

/* Fills engine_params but for the pools. The device and the model are known. */
void sizing_engine(struct stack *s);
/* Fills need, plan and the pools of engine_params. As memplan_make(). */
int sizing_plan(struct stack *s, struct ek_fault *fault);
/* After load(), before kv_open(): blocks by what the device really has left, where the backend
 * measured that, also more than planned, but no more than were asked for by name. EK_EDEVMEM with a
 * fault when it is too little for one request of --max-model-len. */
int sizing_measured(struct stack *s, struct ek_fault *fault);
/* What the backend is asked for, in plan() and load(). */
void sizing_request(const struct stack *s, struct ek_plan_request *ret_request);
/* After the load: measures what was taken, puts both figures into `served` and the log. It lies
 * within SIZING_BAND of the plan, or SIZING_SLACK bytes; else the log warns. */
void sizing_compare(struct stack *s);
#define SIZING_BAND  0.10
#define SIZING_SLACK (8ull << 20) /* stacks, the heap's gaps */
