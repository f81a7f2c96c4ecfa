/* The public functions of the library. They choose the kernel for the size of the numbers and, on x86-64, for the
 * processor at run time. */
#include "call.h"

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

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

#define BY_LEVEL(name, kind)                                                                                          \
    typedef int name##_function(const kind *call);                                                                    \
    name##_function name##_32_v4, name##_32_v3, name##_32_v1, name##_64_v4, name##_64_v3, name##_64_v1;               \
    EXPORT int name(const kind *call) {                                                                               \
        static name##_function *const table[2][4] = {{name##_32_v1, name##_32_v1, name##_32_v3, name##_32_v4},        \
                                                     {name##_64_v1, name##_64_v1, name##_64_v3, name##_64_v4}};       \
        return table[call->size == 8][sphere_level() - 1](call);                                                      \
    }
#else
EXPORT int sphere_level(void) { return 0; }

#define BY_LEVEL(name, kind)                                                                                          \
    int name##_32(const kind *call), name##_64(const kind *call);                                                     \
    EXPORT int name(const kind *call) { return call->size == 8 ? name##_64(call) : name##_32(call); }
#endif

FOR_ALL_FUNCTIONS(BY_LEVEL)
