// What can be wrong with one tensor of the C interface. Only boundaries are read, once they are known to be in memory.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <initializer_list>

#include "interface.h"

namespace checking {

// Kernels count rows, features and the elements of tiles in ints; these leave room for padding.
constexpr int64_t MOST_FEATURES = 1 << 20;
constexpr int64_t MOST_PRODUCTS = (int64_t(1) << 31) - (1 << 27);  // of features and values: the elements of a state
constexpr int64_t MOST_ROWS = (int64_t(1) << 31) - (1 << 15);
constexpr int64_t MOST_THREADS = 1024;

inline bool is_given(const View& x) { return x.dtype != NO_TENSOR; }
inline bool is_input_dtype(int64_t dtype) { return dtype == FLOAT32 || dtype == FLOAT16 || dtype == BFLOAT16; }

inline int64_t bytes_of(int64_t dtype) {
    switch (dtype) {
        case FLOAT32: return 4;
        case FLOAT16:
        case BFLOAT16: return 2;
        case FLOAT64:
        case INT64: return 8;
        default: return 1;
    }
}
inline const char* name_of(int64_t dtype) {
    static const char* const names[] = {"nothing", "float32", "float16", "bfloat16", "float64", "int64", "bool"};
    return dtype >= NO_TENSOR && dtype <= BOOL ? names[dtype] : "another dtype";
}

struct Sizes {
    int64_t rank = 0, size[MOST_DIMENSIONS] = {};
    Sizes(std::initializer_list<int64_t> sizes) {
        for (int64_t s : sizes) size[rank++] = s;
    }
    explicit Sizes(const View& x) : rank(x.rank) {
        for (int i = 0; i < rank; ++i) size[i] = x.size[i];
    }
    bool operator==(const Sizes& other) const {
        bool same = rank == other.rank;
        for (int i = 0; i < rank && same; ++i) same = size[i] == other.size[i];
        return same;
    }
    bool is_empty() const {
        for (int i = 0; i < rank; ++i)
            if (size[i] == 0) return true;
        return false;
    }
};

// Of a tensor that is known to be in memory.
inline const char* end_of(const View& x) {
    int64_t last = 0;
    for (int i = 0; i < x.rank; ++i) last += (x.size[i] - 1) * x.stride[i];
    return x.data + (last + 1) * bytes_of(x.dtype);
}
// Whether their stretches of memory, from the first element to the last, meet.
inline bool share_memory(const View& a, const View& b) {
    return !Sizes(a).is_empty() && !Sizes(b).is_empty() && a.data < end_of(b) && b.data < end_of(a);
}

// "(2, 4, 100, 16)". Made for a message only: writing it costs more than all checks of a tensor.
struct Words {
    char text[96];
    explicit Words(const Sizes& sizes) {
        int at = snprintf(text, sizeof text, "(");
        for (int i = 0; i < sizes.rank; ++i)
            at += snprintf(text + at, sizeof text - size_t(at), i == 0 ? "%lld" : ", %lld", (long long)sizes.size[i]);
        snprintf(text + at, sizeof text - size_t(at), sizes.rank == 1 ? ",)" : ")");
    }
};

// Keeps the first thing that is wrong. Every check is silent once something is.
class Checks {
   public:
    Checks() { message()[0] = 0; }
    bool passed() const { return message()[0] == 0; }
    const char* failure() const { return passed() ? nullptr : message(); }

    __attribute__((format(printf, 3, 4))) bool require(bool holds, const char* format, ...) {
        if (holds || !passed()) return passed();
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message(), MESSAGE, format, arguments);
        va_end(arguments);
        return false;
    }

    void threads(int64_t n) {
        require(n >= 1 && n <= MOST_THREADS, "threads must be from 1 to %lld, got %lld", (long long)MOST_THREADS, (long long)n);
    }

    // (batch, heads, rows, features) in a dtype that q, k and v may have, and sizes that kernels can count.
    void input(const char* name, const View& x) {
        if (!dimensions(name, x, 4)) return;
        require(is_input_dtype(x.dtype), "the native backend takes float32, float16 and bfloat16; %s is %s", name, name_of(x.dtype));
        require(x.size[1] >= 1, "%s needs at least one head", name);
        require(x.size[2] <= MOST_ROWS, "%s may have up to %lld rows, got %lld", name, (long long)MOST_ROWS, (long long)x.size[2]);
        require(x.size[3] >= 1 && x.size[3] <= MOST_FEATURES, "%s must have from 1 to %lld features, got %lld", name,
                (long long)MOST_FEATURES, (long long)x.size[3]);
        if (passed()) view(name, x, x.dtype, Sizes(x));
    }

    // x has this dtype and these sizes, in any layout, and each of its elements is in memory.
    void view(const char* name, const View& x, int64_t dtype, const Sizes& sizes) {
        if (!dimensions(name, x, sizes.rank)) return;
        require(x.dtype == dtype, "%s must be %s, got %s", name, name_of(dtype), name_of(x.dtype));
        if (!(Sizes(x) == sizes)) require(false, "%s must have shape %s, got %s", name, Words(sizes).text, Words(Sizes(x)).text);
        if (passed() && !sizes.is_empty()) memory(name, x);
    }
    void optional(const char* name, const View& x, int64_t dtype, const Sizes& sizes) {
        if (is_given(x)) view(name, x, dtype, sizes);
    }

    // As above, and one element after the other.
    void dense(const char* name, const View& x, int64_t dtype, const Sizes& sizes) {
        view(name, x, dtype, sizes);
        if (!passed() || sizes.is_empty()) return;
        int64_t step = 1;
        bool adjacent = true;
        for (int i = int(x.rank) - 1; i >= 0 && adjacent; --i) {
            adjacent = x.size[i] == 1 || x.stride[i] == step;
            if (adjacent) step *= x.size[i];  // no more than there are elements in memory
        }
        require(adjacent, "%s must be contiguous", name);
    }
    void optional_dense(const char* name, const View& x, int64_t dtype, const Sizes& sizes) {
        if (is_given(x)) dense(name, x, dtype, sizes);
    }

    // What is written row by row: features are adjacent, and no element is another.
    void result(const char* name, const View& x, int64_t dtype, const Sizes& sizes) {
        view(name, x, dtype, sizes);
        if (!passed() || sizes.is_empty()) return;
        require(x.stride[3] == 1 || x.size[3] == 1, "%s must have adjacent features", name);
        require(!overlaps_itself(x), "%s is written to and may not overlap itself", name);
    }

    // Boundaries 0 <= ... <= rows of the sequences packed into one sample.
    void boundaries(const View& x, int64_t batch, int64_t rows) {
        if (!is_given(x) || !dimensions("cu_seqlens", x, 1)) return;
        require(batch == 1, "packed sequences lie in one sample, got %lld", (long long)batch);
        require(x.size[0] >= 2, "cu_seqlens needs at least two boundaries, got %lld", (long long)x.size[0]);
        dense("cu_seqlens", x, INT64, {x.size[0]});
        if (!passed()) return;
        const int64_t* edges = reinterpret_cast<const int64_t*>(x.data);
        const int64_t last = x.size[0] - 1;
        int64_t rising = 0;
        while (rising < last && edges[rising] <= edges[rising + 1]) ++rising;
        require(edges[0] == 0 && edges[last] == rows, "cu_seqlens must rise from 0 to the total length %lld, got %lld to %lld",
                (long long)rows, (long long)edges[0], (long long)edges[last]);
        require(rising == last, "cu_seqlens must rise from 0 to the total length %lld, got %lld before %lld", (long long)rows,
                (long long)edges[rising], (long long)edges[rising < last ? rising + 1 : last]);
    }

   private:
    static constexpr size_t MESSAGE = 512;
    // One for each thread: it must outlive the check, and another thread's check may come at any time.
    static char* message() {
        static thread_local char text[MESSAGE];
        return text;
    }

    bool dimensions(const char* name, const View& x, int64_t rank) {
        if (!require(is_given(x), "%s is missing", name)) return false;
        if (!require(x.rank == rank, "%s must be %lld-D, got %lld-D", name, (long long)rank, (long long)x.rank)) return false;
        bool valid = true;
        for (int i = 0; i < rank; ++i) valid = valid && x.size[i] >= 0 && x.stride[i] >= 0;
        return require(valid, "%s has a negative size or stride", name);
    }

    // The last element, too, lies within the bytes behind the pointer; x has elements.
    void memory(const char* name, const View& x) {
        int64_t last = 0, end = 0;
        bool countable = true;
        for (int i = 0; i < x.rank; ++i) {
            int64_t step;
            countable = countable && !__builtin_mul_overflow(x.size[i] - 1, x.stride[i], &step) &&
                        !__builtin_add_overflow(last, step, &last);
        }
        countable = countable && !__builtin_add_overflow(last, 1, &last) && !__builtin_mul_overflow(last, bytes_of(x.dtype), &end);
        if (!countable || end > x.bytes)
            require(false, "%s of shape %s reaches beyond the %lld bytes behind its pointer", name, Words(Sizes(x)).text,
                    (long long)x.bytes);
        require(x.data != nullptr, "%s has no memory behind it", name);
        require(uintptr_t(x.data) % uintptr_t(bytes_of(x.dtype)) == 0, "%s is not aligned to its elements: clone it", name);
    }

    // From the finest stride up, each dimension must step over all that the finer ones reach.
    static bool overlaps_itself(const View& x) {
        int64_t reach = 0;
        bool used[MOST_DIMENSIONS] = {};
        for (int n = 0; n < x.rank; ++n) {
            int finest = -1;
            for (int i = 0; i < x.rank; ++i)
                if (!used[i] && (finest < 0 || x.stride[i] < x.stride[finest])) finest = i;
            used[finest] = true;
            if (x.size[finest] == 1) continue;
            if (x.stride[finest] <= reach) return true;
            reach += (x.size[finest] - 1) * x.stride[finest];
        }
        return false;
    }
};

}  // namespace checking
