/* The public functions of the library. On x86-64 they choose the kernel for the processor at run time. */
#include "call.h"

#define EXPORT __attribute__((visibility("default")))

/* The digest of the sources that the library was built from. library.py uses it to recognise an outdated library. */
EXPORT const char *sphere_source(void) { return SOURCE_DIGEST; }

#if defined(__x86_64__)
#include <cpuid.h>

/* Asks the processor itself: __builtin_cpu_supports needs a runtime library that not every linker has. */
static int find_level(void) {
    unsigned a, b, c, d, features, saved, high;
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if (!__get_cpuid_count(7, 0, &a, &features, &c, &d) || !__get_cpuid(1, &a, &b, &c, &d)) return 1;
    if (!(c >> 27 & 1)) return 1;                         /* no xgetbv */
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0)); /* the registers that the operating system saves */
    if ((saved & 0x06) != 0x06 || !(c >> 12 & 1) || !(features >> 5 & 1)) return 1; /* FMA, AVX2 */
    return (saved & 0xe0) == 0xe0 && (features & avx512) == avx512 ? 4 : 3;
}

/* The level of x86-64: 4 for AVX-512, 3 for AVX2 and FMA, otherwise 1. The result is cached, because in a virtual
 * machine cpuid takes microseconds. Threads that compute it at the same time get the same result. */
EXPORT int sphere_level(void) {
    static int known;
    int level = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!level) __atomic_store_n(&known, level = find_level(), __ATOMIC_RELAXED);
    return level;
}

/* The public function `name`, which takes a `kind`_call. */
#define BY_LEVEL(name, kind)                                                                \
    kind##_function name##_v4, name##_v3, name##_v1;                                         \
    EXPORT int name(const kind##_call *call) {                                               \
        int level = sphere_level();                                                          \
        return (level == 4 ? name##_v4 : level == 3 ? name##_v3 : name##_v1)(call);          \
    }

BY_LEVEL(sphere_draw, sphere)
BY_LEVEL(sphere_pull_back, sphere)
BY_LEVEL(sphere_normals, normals)
BY_LEVEL(sphere_curve, curve)
BY_LEVEL(sphere_density, density)
BY_LEVEL(sphere_density_gradients, density)
BY_LEVEL(sphere_head, head)
BY_LEVEL(sphere_head_gradient, head)
#else
EXPORT int sphere_level(void) { return 0; } /* kernel.c has the public functions */
#endif
