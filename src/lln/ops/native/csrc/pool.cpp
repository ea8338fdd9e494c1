#include "pool.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "interface.h"

namespace {

// What a worker spins for before it sleeps: long enough to catch the next call of a layer, short enough to leave the
// core to torch's own threads.
constexpr int SPINS = 2000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

class Pool {
   public:
    std::mutex owner;  // one job at a time; a second caller does its work alone

    void run(int64_t threads, int64_t count, lln_task task, void* context) {
        const int64_t helpers = (threads < count ? threads : count) - 1;
        while (workers_ < helpers) {
            std::thread([this, index = workers_] { serve(index); }).detach();
            ++workers_;
        }
        task_ = task;
        context_ = context;
        count_ = count;
        next_.store(0);
        running_.store(helpers);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            helpers_.store(helpers);
            job_.fetch_add(1);
        }
        wake_.notify_all();
        work();
        for (int spin = 0; running_.load(std::memory_order_acquire) > 0; ++spin) {
            if (spin < SPINS) relax();
            else std::this_thread::yield();
        }
    }

   private:
    void work() {
        for (int64_t i; (i = next_.fetch_add(1)) < count_;) task_(context_, i);
    }

    void serve(int64_t index) {
        for (int64_t seen = 0;;) {
            for (int spin = 0; spin < SPINS && job_.load(std::memory_order_acquire) == seen; ++spin) relax();
            if (job_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return job_.load() != seen; });
            }
            // run() waits for the workers below `helpers`, so none of these can miss a job; the others may, and need not care.
            int64_t current, helpers;
            {
                std::lock_guard<std::mutex> lock(mutex_);
                current = job_.load();
                helpers = helpers_.load();
            }
            seen = current;
            if (index >= helpers) continue;
            work();
            running_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int64_t> job_{0}, helpers_{0}, next_{0}, running_{0};
    int64_t count_ = 0, workers_ = 0;
    lln_task task_ = nullptr;
    void* context_ = nullptr;
};

std::atomic<Pool*> pool{nullptr};

// GOMP_parallel of the OpenMP runtime that torch runs on, or null.
std::atomic<lln_team> team{nullptr};

// The child of a fork has none of its parent's threads, and torch's runtime would wait for them for ever: it forgets both,
// and makes a pool of its own when it needs one.
void forget_threads() {
    pool.store(nullptr);
    team.store(nullptr);
}

void remember_forks() {
#if !defined(_WIN32)  // where there are no forks
    static const int registered = pthread_atfork(nullptr, nullptr, forget_threads);
    (void)registered;
#endif
}

struct Shared {
    lln_task task;
    void* context;
    int64_t count;
    std::atomic<int64_t> next{0};
};

void share(void* data) {
    Shared& job = *static_cast<Shared*>(data);
    for (int64_t i; (i = job.next.fetch_add(1)) < job.count;) job.task(job.context, i);
}

Pool& current_pool() {
    remember_forks();
    Pool* existing = pool.load();
    if (existing == nullptr) {
        Pool* fresh = new Pool;
        if (pool.compare_exchange_strong(existing, fresh)) return *fresh;
        delete fresh;
    }
    return *existing;
}

}  // namespace

void lln_parallel(int64_t threads, int64_t count, lln_task task, void* context) {
    if (threads > 1 && count > 1) {
        if (lln_team torch = team.load()) {
            Shared job{task, context, count};
            return torch(share, &job, static_cast<unsigned>(threads < count ? threads : count), 0);
        }
        Pool& mine = current_pool();
        std::unique_lock<std::mutex> lock(mine.owner, std::try_to_lock);
        if (lock.owns_lock()) return mine.run(threads, count, task, context);
    }
    for (int64_t i = 0; i < count; ++i) task(context, i);
}

EXPORT void lln_use_team(void* parallel) {
    remember_forks();
    team.store(reinterpret_cast<lln_team>(parallel));
}
