// The near keys of rows, gathered: first tokens that lie before the window, then the window.
#pragma once
#include "blocks.h"
#include "near_far_head.h"

namespace LLN_ISA {

// Keys and values from a few stretches of rows.
class NearKeys {
   public:
    const Shape& s;
    const bool is_causal;
    const int most;      // room, in keys
    const int pitch_of;  // of tiles with a column for each key
    int count = 0;
    bool has_masked = false;
    bool all_finite = true;  // of the values; looked at only when causal
    Buffer keys, keys_t, values, sees;  // sees: all bits set for a key that counts, else none

    NearKeys(const Shape& shape, int64_t room, bool causal)
        : s(shape), is_causal(causal), most(padded(room)), pitch_of(pitch(room)), keys(int64_t(most) * s.ld),
          keys_t(int64_t(s.d) * pitch_of), values(int64_t(most) * s.le), sees(most) {}

    // How many of the keys a row sees.
    int seen_by(int64_t row) const { return is_causal ? int(row - sees_up_to_) + 1 : count; }

   protected:
    void begin() { count = 0, has_masked = false; }
    void gather(const Rows& k, const Rows& v, const Mask& mask, const Span& rows) {
        const int n = int(rows.rows());
        load_values(k, mask, rows.first, n, keys + int64_t(count) * s.ld, s.ld);
        load_values(v, mask, rows.first, n, values + int64_t(count) * s.le, s.le);
        for (int j = 0; j < n; ++j) {
            const bool counts = mask.counts(rows.first + j);
            const int32_t bits = counts ? -1 : 0;
            memcpy(sees + count + j, &bits, 4);
            has_masked |= !counts;
        }
        count += n;
    }
    void end() {
        const int32_t never = 0;
        for (int j = count; j < padded(count); ++j) {
            memcpy(sees + j, &never, 4);
            fill_row(keys + int64_t(j) * s.ld, s.d, 0);
            fill_row(values + int64_t(j) * s.le, s.e, 0);
        }
        transpose(padded(count), s.dim, keys, s.ld, keys_t, pitch_of);
        all_finite = !is_causal || finite_values();
    }
    int64_t sees_up_to_ = 0;  // causal: the row that would see only the first key

   private:
    bool finite_values() const {
        vi bad = {};
        for (int j = 0; j < count; ++j)
            for (int m = 0; m < s.e; m += W) bad |= LLN_ISA::load(values + int64_t(j) * s.le + m) * 0 != vf{};
        return !any(bad);
    }
};

// Those of a block.
class NearKeysOfBlock : public NearKeys {
   public:
    const NearFarHead& head;
    int first_tokens = 0;
    Span before = {}, window = {};
    explicit NearKeysOfBlock(const NearFarHead& h)
        : NearKeys(h.shape, h.most_near_keys(), h.near_far.is_causal != 0), head(h) {}

    void load(int64_t block) {
        before = head.before_window(block), window = head.window(block);
        first_tokens = int(before.rows()), sees_up_to_ = window.first - first_tokens;
        begin();
        gather(head.k, head.v, head.mask, before);
        gather(head.k, head.v, head.mask, window);
        end();
    }
};

}  // namespace LLN_ISA
