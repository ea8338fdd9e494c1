// The library's entry points: each picks the compiled kernel for an instruction set by number, lowest first.
#include "problem.h"

#define DECLARE(isa)                           \
    namespace isa {                            \
    void forward(const Problem&);              \
    void backward(const Problem&);             \
    void moments(const MomentsProblem&);       \
    void match(const MatchProblem&);           \
    void block_forward(const BlockProblem&);   \
    void block_backward(const BlockProblem&);  \
    }
DECLARE(portable)
#if defined(LLN_X86)
DECLARE(avx2)
DECLARE(avx512)
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Kernel {
    const char* name;
    bool (*usable)();
    void (*forward)(const Problem&);
    void (*backward)(const Problem&);
    void (*moments)(const MomentsProblem&);
    void (*match)(const MatchProblem&);
    void (*block_forward)(const BlockProblem&);
    void (*block_backward)(const BlockProblem&);
};

#define KERNEL(isa, condition)                                                                                      \
    {                                                                                                               \
        #isa, [] { return bool(condition); }, isa::forward, isa::backward, isa::moments, isa::match, isa::block_forward, \
            isa::block_backward                                                                                     \
    }

const Kernel kernels[] = {
    KERNEL(portable, true),
#if defined(LLN_X86)
    KERNEL(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")),
    KERNEL(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")),
#endif
};
constexpr int64_t count = sizeof kernels / sizeof kernels[0];

}  // namespace

EXPORT int64_t lln_kernel_count() { return count; }
EXPORT const char* lln_kernel_name(int64_t isa) { return kernels[isa].name; }
EXPORT int64_t lln_kernel_usable(int64_t isa) { return kernels[isa].usable(); }
// The sizes of the argument blocks, so that a library left over from another version is noticed before it is called.
EXPORT int64_t lln_problem_words() { return sizeof(Problem) / 8; }
EXPORT int64_t lln_moments_words() { return sizeof(MomentsProblem) / 8; }
EXPORT int64_t lln_match_words() { return sizeof(MatchProblem) / 8; }
EXPORT int64_t lln_block_words() { return sizeof(BlockProblem) / 8; }
EXPORT void lln_forward(int64_t isa, const Problem* p) { kernels[isa].forward(*p); }
EXPORT void lln_backward(int64_t isa, const Problem* p) { kernels[isa].backward(*p); }
EXPORT void lln_moments(int64_t isa, const MomentsProblem* p) { kernels[isa].moments(*p); }
EXPORT void lln_match(int64_t isa, const MatchProblem* p) { kernels[isa].match(*p); }
EXPORT void lln_block_forward(int64_t isa, const BlockProblem* p) { kernels[isa].block_forward(*p); }
EXPORT void lln_block_backward(int64_t isa, const BlockProblem* p) { kernels[isa].block_backward(*p); }
