/* The public functions of the library. On x86-64 they choose the kernel for the processor at run time. */
#include "call.h"

#define EXPORT __attribute__((visibility("default")))

/* The digest of the sources that the library was built from. library.py uses it to recognise an outdated library. */
EXPORT const char *sphere_source(void) { return SOURCE_DIGEST; }

#if defined(__x86_64__)
#include <cpuid.h>

sphere_function sphere_draw_v4, sphere_draw_v3, sphere_draw_v1;
sphere_function sphere_pull_back_v4, sphere_pull_back_v3, sphere_pull_back_v1;
normals_function sphere_normals_v4, sphere_normals_v3, sphere_normals_v1;
functions_function sphere_functions_v4, sphere_functions_v3, sphere_functions_v1;
density_function sphere_density_v4, sphere_density_v3, sphere_density_v1;
density_function sphere_density_gradients_v4, sphere_density_gradients_v3, sphere_density_gradients_v1;
head_function sphere_head_v4, sphere_head_v3, sphere_head_v1;
head_function sphere_head_gradient_v4, sphere_head_gradient_v3, sphere_head_gradient_v1;

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

EXPORT int sphere_draw(const sphere_call *call) {
    int level = sphere_level();
    return (level == 4 ? sphere_draw_v4 : level == 3 ? sphere_draw_v3 : sphere_draw_v1)(call);
}

EXPORT int sphere_pull_back(const sphere_call *call) {
    int level = sphere_level();
    return (level == 4 ? sphere_pull_back_v4 : level == 3 ? sphere_pull_back_v3 : sphere_pull_back_v1)(call);
}

EXPORT int sphere_normals(const normals_call *call) {
    int level = sphere_level();
    return (level == 4 ? sphere_normals_v4 : level == 3 ? sphere_normals_v3 : sphere_normals_v1)(call);
}

EXPORT int sphere_functions(const functions_call *call) {
    int level = sphere_level();
    return (level == 4 ? sphere_functions_v4 : level == 3 ? sphere_functions_v3 : sphere_functions_v1)(call);
}

EXPORT int sphere_density(const density_call *call) {
    int level = sphere_level();
    return (level == 4 ? sphere_density_v4 : level == 3 ? sphere_density_v3 : sphere_density_v1)(call);
}

EXPORT int sphere_density_gradients(const density_call *call) {
    int level = sphere_level();
    return (level == 4   ? sphere_density_gradients_v4
            : level == 3 ? sphere_density_gradients_v3
                         : sphere_density_gradients_v1)(call);
}

EXPORT int sphere_head(const head_call *call) {
    int level = sphere_level();
    return (level == 4 ? sphere_head_v4 : level == 3 ? sphere_head_v3 : sphere_head_v1)(call);
}

EXPORT int sphere_head_gradient(const head_call *call) {
    int level = sphere_level();
    return (level == 4   ? sphere_head_gradient_v4
            : level == 3 ? sphere_head_gradient_v3
                         : sphere_head_gradient_v1)(call);
}
#else
EXPORT int sphere_level(void) { return 0; } /* kernel.c has the public functions */
#endif
