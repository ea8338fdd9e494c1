// Compiled once for each instruction set, into a namespace of its own so that no function of one is taken for another's.
#include "diag_step.h"
#include "near_far_backward.h"
#include "near_far_step.h"
#include "sample_matching.h"

namespace LLN_ISA {

void forward(const Problem& p);
void backward(const Problem& p);
void moments(const MomentsProblem& p);
void match(const MatchProblem& p);
void block_forward(const BlockProblem& p);
void block_backward(const BlockProblem& p);
void diag_forward(const DiagProblem& p);
void diag_backward(const DiagProblem& p);
void diag_step(const DiagStepProblem& p);
void near_far_forward(const NearFarProblem& p);
void near_far_backward(const NearFarProblem& p);
void near_far_step(const NearFarStepProblem& p);

void forward(const Problem& p) { for_each_head(p, p.is_causal ? causal_forward : bidirectional_forward); }
void backward(const Problem& p) { for_each_head(p, p.is_causal ? causal_backward : bidirectional_backward); }
void moments(const MomentsProblem& p) { all_moments(p); }
void match(const MatchProblem& p) { p.entropies == nullptr ? match_moments(p) : match_on_samples(p); }
void block_forward(const BlockProblem& p) { all_blocks_forward(p); }
void block_backward(const BlockProblem& p) { all_blocks_backward(p); }
void diag_forward(const DiagProblem& p) { all_diag_forward(p); }
void diag_backward(const DiagProblem& p) { all_diag_backward(p); }
void diag_step(const DiagStepProblem& p) { one_diag_step(p); }
void near_far_forward(const NearFarProblem& p) { all_near_far_forward(p); }
void near_far_backward(const NearFarProblem& p) { all_near_far_backward(p); }
void near_far_step(const NearFarStepProblem& p) { all_near_far_steps(p); }

}  // namespace LLN_ISA
