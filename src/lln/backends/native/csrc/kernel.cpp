// Compiled once for each instruction set, into a namespace of its own so that no function of one is taken for another's.
#include "bidirectional_backward.h"
#include "causal_backward.h"
#include "moments.h"

namespace LLN_ISA {

void forward(const Problem& p);
void backward(const Problem& p);
void moments(const MomentsProblem& p);

void forward(const Problem& p) { p.is_causal ? causal_forward(p) : bidirectional_forward(p); }
void backward(const Problem& p) { p.is_causal ? causal_backward(p) : bidirectional_backward(p); }
void moments(const MomentsProblem& p) { all_moments(p); }

}  // namespace LLN_ISA
