/* How kernels/cuda calls the driver, cuBLASLt and NCCL is how their headers say: as many arguments,
 * each of the same size and kind. Compiled, never run, where the toolkit is. */
#include <cublasLt.h>
#include <cuda.h>
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include <type_traits>

#define CU_EVENT_DEFAULT       OUR_EVENT_DEFAULT
#define CU_STREAM_NON_BLOCKING OUR_STREAM_NON_BLOCKING
#include "kernels/cuda/lt.h"
#include "kernels/cuda/nccl.h"

template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                       std::is_class_v<A> == std::is_class_v<B> &&
                       std::is_floating_point_v<A> == std::is_floating_point_v<B>;

template <class... T> struct list;
template <class A, class B> constexpr bool all_alike = false;
template <> constexpr bool all_alike<list<>, list<>> = true;
template <class A, class... As, class B, class... Bs>
constexpr bool all_alike<list<A, As...>, list<B, Bs...>> =
    alike<A, B> && all_alike<list<As...>, list<Bs...>>;

template <class Ours, class Theirs> constexpr bool same = false;
template <class R, class... A, class S, class... B>
constexpr bool same<R (*)(A...), S(B...)> = alike<R, S> && all_alike<list<A...>, list<B...>>;

#define CU_SAME(field, symbol, args)                                                               \
    static_assert(same<decltype(cu_driver::field), decltype(symbol)>, #symbol);
CU_FUNCTIONS(CU_SAME)

struct lt_functions {
#define LT_FIELD(field, symbol, args) int(*field) args;
    LT_FUNCTIONS(LT_FIELD)
};
#define LT_SAME(field, symbol, args)                                                               \
    static_assert(same<decltype(lt_functions::field), decltype(symbol)>, #symbol);
LT_FUNCTIONS(LT_SAME)

#if __has_include(<nccl.h>)
#define NCCL_SAME(type, field, symbol, args)                                                       \
    static_assert(same<decltype(nccl::field), decltype(symbol)>, #symbol);
NCCL_FUNCTIONS(NCCL_SAME)
#endif
