// Reading rows of a strided tensor of any dtype into a float tile, and writing a tile back.
#pragma once
#include <new>

#include "pool.h"
#include "problem.h"
#include "product.h"

namespace LLN_ISA {

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int padded(int64_t n) { return int((n + PANEL - 1) / PANEL * PANEL); }
// Rows of a tile are set apart by a further cache line, so that columns do not all fall into the same sets of the cache.
INLINE int pitch(int64_t n) { return padded(n) + 16; }

// Scratch memory, aligned to cache lines. Each thread keeps a few blocks to hand, because fresh pages cost more than a small call.
class Buffer {
   public:
    explicit Buffer(int64_t floats) : size_((size_t(floats) * 4 + 63) / 64 * 64) {
        for (Block& block : kept().blocks)
            if (block.data != nullptr && block.size >= size_ && block.size <= 4 * size_) {
                data_ = block.data, size_ = block.size;
                block.data = nullptr;
                return;
            }
        data_ = static_cast<float*>(::operator new(size_, LINE));
    }
    ~Buffer() {
        if (size_ <= LARGEST_KEPT)
            for (Block& block : kept().blocks)
                if (block.data == nullptr) {
                    block = {data_, size_};
                    return;
                }
        ::operator delete(data_, LINE);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    operator float*() const { return data_; }

   private:
    static constexpr std::align_val_t LINE{64};
#if defined(__SANITIZE_ADDRESS__)
    static constexpr size_t LARGEST_KEPT = 0;  // so that the sanitizer sees each block's own bounds and lifetime
#else
    static constexpr size_t LARGEST_KEPT = 1 << 20;
#endif
    struct Block {
        float* data = nullptr;
        size_t size = 0;
    };
    struct Kept {
        Block blocks[32];
        ~Kept() {
            for (Block& block : blocks) ::operator delete(block.data, LINE);
        }
    };
    static Kept& kept() {
        static thread_local Kept mine;
        return mine;
    }

    float* data_ = nullptr;
    size_t size_;
};

template <class Body>
static void parallel(int64_t threads, int64_t count, Body body) {
    // noexcept: were one thread to leave for want of memory, the others would go on with what lies on its stack.
    lln_parallel(threads, count, [](void* context, int64_t i) noexcept { (*static_cast<Body*>(context))(i); }, &body);
}

// Threads take whole heads when that keeps them nearly all busy; otherwise heads come one by one, shared out in stretches.
INLINE bool fill_threads(int64_t heads, int64_t threads) {
    const int64_t rounds = (heads + threads - 1) / threads;
    return heads * 5 >= rounds * threads * 4;
}

// The rows of one head of a tensor.
struct Rows {
    char* data;
    int64_t dtype, row_stride, feature_stride, features;

    Rows() = default;
    Rows(const Tensor& t, int64_t dtype, int64_t batch, int64_t head, int64_t first_row, int64_t features)
        : dtype(dtype), row_stride(t.row_stride), feature_stride(t.feature_stride), features(features) {
        const int64_t offset = batch * t.batch_stride + head * t.head_stride + first_row * t.row_stride;
        data = t.data + offset * (dtype == FLOAT32 ? 4 : 2);
    }
};

// The factors of the rows of one head.
struct Weights {
    const float* data;  // null: all are 1
    int64_t stride;
    Weights(const RowWeights& of, int64_t batch, int64_t head, int64_t first_row) : data(of.data), stride(of.row_stride) {
        if (data != nullptr) data += batch * of.batch_stride + head * of.head_stride + first_row * stride;
    }
    float operator()(int64_t row) const { return data == nullptr ? 1 : data[row * stride]; }
};

// Fetches rows first .. last - 1 of up to six tensors into the cache, a few at a time, while something else is computed.
class Fetch {
   public:
    Fetch(int64_t first, int64_t last, int calls) : at_(first), last_(last), step_(int((last - first + calls - 1) / calls)) {}
    Fetch& read(const Rows& rows) { return add(rows, false); }
    Fetch& write(const Rows& rows) { return add(rows, true); }
    void operator()() {
        for (int i = 0; i < step_ && at_ < last_; ++i, ++at_)
            for (int n = 0; n < count_; ++n) {
                const char* row = streams_[n].data + at_ * streams_[n].pitch;
                for (int64_t byte = 0; byte < streams_[n].bytes; byte += 64)
                    if (streams_[n].written) __builtin_prefetch(row + byte, 1);
                    else __builtin_prefetch(row + byte, 0, 2);  // into L2: L1 is full of the tiles at work
            }
    }

   private:
    Fetch& add(const Rows& rows, bool written) {
        const int64_t size = rows.dtype == FLOAT32 ? 4 : 2;
        if (rows.feature_stride == 1) streams_[count_++] = {rows.data, rows.row_stride * size, rows.features * size, written};
        return *this;
    }
    struct Stream {
        const char* data;
        int64_t pitch, bytes;
        bool written;
    };
    Stream streams_[6];
    int64_t at_, last_;
    int step_, count_ = 0;
};

INLINE int blocks(int rows, int columns) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * (columns / PANEL); }

// Which keys count.
struct Mask {
    const uint8_t* data;  // null: all of them
    int64_t stride;
    bool counts(int64_t row) const { return data == nullptr || data[row * stride] != 0; }
};

// use(T()) for the type that a dtype stands for.
template <class Use>
INLINE auto by_type(int64_t dtype, Use use) {
    switch (dtype) {
        case FLOAT16: return use(half_t());
        case BFLOAT16: return use(bfloat_t());
        default: return use(float());
    }
}

template <class T, class Use>
INLINE void visit_row(const T* row, int64_t stride, int features, int width, Use use) {
    int l = 0;
    if (stride == 1)
        for (; l + W <= features; l += W) use(l, load_as_float(row + l));
    for (; l < width; l += W) {  // the tail, and layouts whose features are not adjacent
        vf x = {};
        for (int i = 0; i < W && l + i < features; ++i) x[i] = to_float(row[(l + i) * stride]);
        use(l, x);
    }
}

template <class T>
static void load_rows_as(const Rows& x, int64_t first, int count, const float* scale, const float* shift, float* tile, int ld) {
    const int width = padded(x.features);
    for (int r = 0; r < count; ++r) {
        const T* row = reinterpret_cast<const T*>(x.data) + (first + r) * x.row_stride;
        float* to = tile + int64_t(r) * ld;
        if (scale == nullptr)
            visit_row(row, x.feature_stride, int(x.features), width, [&](int l, vf y) { store(to + l, y); });
        else if (shift == nullptr)
            visit_row(row, x.feature_stride, int(x.features), width,
                      [&](int l, vf y) { store(to + l, y * load(scale + l)); });
        else
            visit_row(row, x.feature_stride, int(x.features), width,
                      [&](int l, vf y) { store(to + l, y * load(scale + l) + load(shift + l)); });
    }
}

// tile_r = scale * x_{first + r} + shift, as float; columns past the features read x as 0. scale and shift may be null.
static void load_rows(const Rows& x, int64_t first, int count, const float* scale, const float* shift, float* tile, int ld) {
    return by_type(x.dtype, [&](auto type) { return load_rows_as<decltype(type)>(x, first, count, scale, shift, tile, ld); });
}

template <class T>
static void load_weighted_rows_as(const Rows& x, int64_t first, int count, const Weights& weights, float* tile, int ld) {
    for (int r = 0; r < count; ++r) {
        const T* row = reinterpret_cast<const T*>(x.data) + (first + r) * x.row_stride;
        float* to = tile + int64_t(r) * ld;
        const float weight = weights(first + r);
        visit_row(row, x.feature_stride, int(x.features), padded(x.features), [&](int l, vf y) { store(to + l, y * weight); });
    }
}

// tile_r = weight_{first + r} x_{first + r}, as float.
static void load_weighted_rows(const Rows& x, int64_t first, int count, const Weights& weights, float* tile, int ld) {
    if (weights.data == nullptr) return load_rows(x, first, count, nullptr, nullptr, tile, ld);
    return by_type(x.dtype, [&](auto type) { return load_weighted_rows_as<decltype(type)>(x, first, count, weights, tile, ld); });
}

template <class T>
static void store_rows_as(const Rows& x, int64_t first, int count, const float* tile, int ld, const float* divisors) {
    const int features = int(x.features);
    for (int r = 0; r < count; ++r) {
        T* row = reinterpret_cast<T*>(x.data) + (first + r) * x.row_stride;
        const float* from = tile + int64_t(r) * ld;
        const float factor = divisors == nullptr ? 1.0f : 1.0f / divisors[r];
        int l = 0;
        for (; l + W <= features; l += W) store_from_float(row + l, load(from + l) * factor);
        for (; l < features; ++l) from_float(from[l] * factor, row[l]);
    }
}

// x_{first + r} = tile_r / divisor_r. The tensors written to are our own, with adjacent features.
static void store_rows(const Rows& x, int64_t first, int count, const float* tile, int ld, const float* divisors = nullptr) {
    return by_type(x.dtype, [&](auto type) { return store_rows_as<decltype(type)>(x, first, count, tile, ld, divisors); });
}

// The first lanes of x, of those features that there are from l on.
template <class T>
INLINE void store_features(T* row, int l, int features, vf x) {
    if (l + W <= features) return store_from_float(row + l, x);
    for (int i = 0; l + i < features; ++i) from_float(x[i], row[l + i]);
}

template <class T>
static void add_to_rows_as(const Rows& x, int64_t first, int count, const float* tile, int ld) {
    const int features = int(x.features);
    for (int r = 0; r < count; ++r) {
        T* row = reinterpret_cast<T*>(x.data) + (first + r) * x.row_stride;
        const float* from = tile + int64_t(r) * ld;
        visit_row(row, 1, features, features, [&](int l, vf y) { store_features(row, l, features, y + load(from + l)); });
    }
}

// x_{first + r} += tile_r, the sum in float.
static void add_to_rows(const Rows& x, int64_t first, int count, const float* tile, int ld) {
    return by_type(x.dtype, [&](auto type) { return add_to_rows_as<decltype(type)>(x, first, count, tile, ld); });
}

template <class T>
static void store_mixed_rows_as(const Rows& x, const Rows& far, const Weights& weights, int64_t first, int count, const float* tile,
                                int ld, const float* divisors) {
    const int features = int(x.features);
    for (int r = 0; r < count; ++r) {
        T* row = reinterpret_cast<T*>(x.data) + (first + r) * x.row_stride;
        const T* other = reinterpret_cast<const T*>(far.data) + (first + r) * far.row_stride;
        const float* from = tile + int64_t(r) * ld;
        const float weight = weights(first + r), near = (1 - weight) / divisors[r];
        visit_row(other, far.feature_stride, features, features,
                  [&](int l, vf y) { store_features(row, l, features, y * weight + load(from + l) * near); });
    }
}

// x_i = w_i far_i + (1 - w_i) tile_r / divisor_r for i = first + r, in float; far may be x.
static void store_mixed_rows(const Rows& x, const Rows& far, const Weights& weights, int64_t first, int count, const float* tile,
                             int ld, const float* divisors) {
    by_type(x.dtype, [&](auto type) { store_mixed_rows_as<decltype(type)>(x, far, weights, first, count, tile, ld, divisors); });
}

template <class T>
static float dot_as(const Rows& x, int64_t row, const float* with) {
    vf products = {};
    visit_row(reinterpret_cast<const T*>(x.data) + row * x.row_stride, x.feature_stride, int(x.features), int(x.features),
              [&](int l, vf y) { products += y * load(with + l); });
    return sum(products);
}

// x_row . with, which is padded with zeros.
static float dot(const Rows& x, int64_t row, const float* with) {
    return by_type(x.dtype, [&](auto type) { return dot_as<decltype(type)>(x, row, with); });
}

static void fill_row(float* row, int width, float value) {
    for (int l = 0; l < width; l += W) store(row + l, splat(value));
}

static void store_zero_rows(const Rows& x, int64_t first, int64_t count, const float* zeros) {
    for (int64_t r = 0; r < count; ++r) store_rows(x, first + r, 1, zeros, 0);
}

// Rows of k as b = beta k, and of v, with the keys that do not count as -inf and 0, whatever they hold. Returns how many count.
static int load_keys(const Rows& k, const Mask& mask, const float* beta, int64_t first, int count, float* tile, int ld) {
    load_rows(k, first, count, beta, nullptr, tile, ld);
    int counting = count;
    if (mask.data != nullptr)
        for (int r = 0; r < count; ++r)
            if (!mask.counts(first + r)) {
                fill_row(tile + int64_t(r) * ld, padded(k.features), -__builtin_inff());
                --counting;
            }
    return counting;
}
static void load_values(const Rows& v, const Mask& mask, int64_t first, int count, float* tile, int ld) {
    load_rows(v, first, count, nullptr, nullptr, tile, ld);
    if (mask.data != nullptr)
        for (int r = 0; r < count; ++r)
            if (!mask.counts(first + r)) fill_row(tile + int64_t(r) * ld, padded(v.features), 0);
}

}  // namespace LLN_ISA
