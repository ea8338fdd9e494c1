// A pool of threads of our own: torch's OpenMP runtime can neither be relied on to be loaded nor be used after a fork.
#pragma once
#include <cstdint>

typedef void (*lln_task)(void* context, int64_t index);

// Runs task(context, 0 .. count - 1) on up to `threads` threads, the caller being one of them.
void lln_parallel(int64_t threads, int64_t count, lln_task task, void* context);
