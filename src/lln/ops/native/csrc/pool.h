// Threads: those of torch's own OpenMP runtime where it is GNU's, else a pool of our own.
//
// After a parallel operation torch's workers spin for a while, waiting for the next: threads of ours would have to share the
// cores with them. So we are that next operation, where we can. After a fork neither exists, and a pool of our own is made.
#pragma once
#include <cstdint>

typedef void (*lln_task)(void* context, int64_t index);
typedef void (*lln_team)(void (*share)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel

// Runs task(context, 0 .. count - 1) on up to `threads` threads, the caller being one of them.
void lln_parallel(int64_t threads, int64_t count, lln_task task, void* context);
