// Whether a call can be carried out within the memory it was given. Nothing but boundaries is read, and those only once they are
// known to be there; nothing is written.
#pragma once
#include "problem.h"

enum Pass { FORWARD, BACKWARD };

// Each returns null and fills in the problem, or returns what is wrong, in words that last until this thread's next check.
const char* check(const AttentionCall& call, Pass pass, Problem& problem);
const char* check(const MomentsCall& call, MomentsProblem& problem);
const char* check(const MatchCall& call, MatchProblem& problem);
const char* check(const BlockCall& call, Pass pass, BlockProblem& problem);
const char* check(const DiagCall& call, Pass pass, DiagProblem& problem);
const char* check(const DiagStepCall& call, DiagStepProblem& problem);
const char* check(const NearFarCall& call, Pass pass, NearFarProblem& problem);
const char* check(const NearFarStepCall& call, NearFarStepProblem& problem);
