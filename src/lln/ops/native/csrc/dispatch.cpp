// The library's entry points. Each checks its call and hands it to the kernel for an instruction set, which is known by number,
// lowest first. It returns null, or in words why nothing was done.
#include <new>

#include "checks.h"
#include "cpu.h"

#define DECLARE(isa)                           \
    namespace isa {                            \
    void forward(const Problem&);              \
    void backward(const Problem&);             \
    void moments(const MomentsProblem&);       \
    void match(const MatchProblem&);           \
    void block_forward(const BlockProblem&);   \
    void block_backward(const BlockProblem&);  \
    void diag_forward(const DiagProblem&);     \
    void diag_backward(const DiagProblem&);    \
    void diag_step(const DiagStepProblem&);    \
    void near_far_forward(const NearFarProblem&);   \
    void near_far_backward(const NearFarProblem&);  \
    void near_far_step(const NearFarStepProblem&);  \
    }
#if defined(__aarch64__)
DECLARE(neon)
#else
DECLARE(portable)
#endif
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
#endif

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
    void (*diag_forward)(const DiagProblem&);
    void (*diag_backward)(const DiagProblem&);
    void (*diag_step)(const DiagStepProblem&);
    void (*near_far_forward)(const NearFarProblem&);
    void (*near_far_backward)(const NearFarProblem&);
    void (*near_far_step)(const NearFarStepProblem&);
};

#define KERNEL(isa, condition)                                                                                      \
    {                                                                                                               \
        #isa, [] { return bool(condition); }, isa::forward, isa::backward, isa::moments, isa::match, isa::block_forward, \
            isa::block_backward, isa::diag_forward, isa::diag_backward, isa::diag_step, isa::near_far_forward,         \
            isa::near_far_backward, isa::near_far_step                                                              \
    }

const Kernel kernels[] = {
#if defined(__aarch64__)
    KERNEL(neon, true),
#else
    KERNEL(portable, true),
#endif
#if defined(__x86_64__)
    KERNEL(avx2, cpu().avx2),
    KERNEL(avx512, cpu().avx512),
#endif
};
constexpr int64_t count = sizeof kernels / sizeof kernels[0];

bool is_usable(int64_t isa) { return isa >= 0 && isa < count && kernels[isa].usable(); }

// Sizes may be anything where there is nothing to do, so then nothing is begun.
bool has_work(const Problem& p) { return p.sequences > 0; }
bool has_work(const MomentsProblem& p) { return p.sequences > 0; }
bool has_work(const MatchProblem& p) { return p.k.sequences > 0; }
bool has_work(const BlockProblem& p) { return p.sequences > 0 && p.query_rows > 0; }
bool has_work(const DiagProblem& p) { return has_work(p.near); }
bool has_work(const DiagStepProblem& p) { return has_work(p.near); }

template <class Call, class Problem_, class... Pass_>
const char* run(const Call* call, void (*Kernel::*function)(const Problem_&), Pass_... pass) {
    if (call == nullptr) return "there is no call";
    if (!is_usable(call->isa)) return "there is no such instruction set on this machine";
    Problem_ problem = {};
    if (const char* wrong = check(*call, pass..., problem)) return wrong;
    try {
        if (has_work(problem)) (kernels[call->isa].*function)(problem);
    } catch (const std::bad_alloc&) {
        return "there is not enough memory";
    }
    return nullptr;
}

}  // namespace

EXPORT int64_t lln_kernel_count() { return count; }
EXPORT const char* lln_kernel_name(int64_t isa) { return isa >= 0 && isa < count ? kernels[isa].name : ""; }
EXPORT int64_t lln_kernel_usable(int64_t isa) { return is_usable(isa); }
// The sizes of the calls, so that a library left over from another version is noticed before it is called.
EXPORT int64_t lln_attention_call_bytes() { return sizeof(AttentionCall); }
EXPORT int64_t lln_moments_call_bytes() { return sizeof(MomentsCall); }
EXPORT int64_t lln_match_call_bytes() { return sizeof(MatchCall); }
EXPORT int64_t lln_block_call_bytes() { return sizeof(BlockCall); }
EXPORT int64_t lln_diag_call_bytes() { return sizeof(DiagCall); }
EXPORT int64_t lln_diag_step_call_bytes() { return sizeof(DiagStepCall); }
EXPORT int64_t lln_near_far_call_bytes() { return sizeof(NearFarCall); }
EXPORT int64_t lln_near_far_step_call_bytes() { return sizeof(NearFarStepCall); }
EXPORT const char* lln_forward(const AttentionCall* call) { return run(call, &Kernel::forward, FORWARD); }
EXPORT const char* lln_backward(const AttentionCall* call) { return run(call, &Kernel::backward, BACKWARD); }
EXPORT const char* lln_moments(const MomentsCall* call) { return run(call, &Kernel::moments); }
EXPORT const char* lln_match(const MatchCall* call) { return run(call, &Kernel::match); }
EXPORT const char* lln_block_forward(const BlockCall* call) { return run(call, &Kernel::block_forward, FORWARD); }
EXPORT const char* lln_block_backward(const BlockCall* call) { return run(call, &Kernel::block_backward, BACKWARD); }
EXPORT const char* lln_diag_forward(const DiagCall* call) { return run(call, &Kernel::diag_forward, FORWARD); }
EXPORT const char* lln_diag_backward(const DiagCall* call) { return run(call, &Kernel::diag_backward, BACKWARD); }
EXPORT const char* lln_diag_step(const DiagStepCall* call) { return run(call, &Kernel::diag_step); }
EXPORT const char* lln_near_far_forward(const NearFarCall* call) { return run(call, &Kernel::near_far_forward, FORWARD); }
EXPORT const char* lln_near_far_backward(const NearFarCall* call) { return run(call, &Kernel::near_far_backward, BACKWARD); }
EXPORT const char* lln_near_far_step(const NearFarStepCall* call) { return run(call, &Kernel::near_far_step); }
