// A large result is fresh memory, and each of its 4 KB pages costs a fault on first touch: together as much as the arithmetic that
// fills them. Systems that hand out huge pages on request (Linux with transparent_hugepage = madvise) are asked to.
#include "interface.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

EXPORT void lln_prefer_huge_pages(char* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), begin = uintptr_t(data);
    const uintptr_t first = (begin + page - 1) / page * page, last = (begin + uintptr_t(bytes)) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // advice: failing does no harm
#else
    (void)data, (void)bytes;
#endif
}
