// The near keys of a block of rows, gathered: first tokens that lie before the window, then the window.
#pragma once
#include "blocks.h"
#include "near_far_head.h"

namespace LLN_ISA {

class NearKeys {
   public:
    const NearFarHead& head;
    const Shape& s;
    const int most;      // room, in keys
    const int pitch_of;  // of tiles with a column for each key
    int count = 0, first_tokens = 0;
    Span before = {}, window = {};
    bool has_masked = false;
    bool all_finite = true;  // of the values; looked at only when causal
    Buffer keys, keys_t, values, sees;  // sees: all bits set for a key that counts, else none

    explicit NearKeys(const NearFarHead& h)
        : head(h), s(h.shape), most(padded(h.most_near_keys())), pitch_of(pitch(h.most_near_keys())), keys(int64_t(most) * s.ld),
          keys_t(int64_t(s.d) * pitch_of), values(int64_t(most) * s.le), sees(most) {}

    void load(int64_t block) {
        before = head.before_window(block), window = head.window(block);
        first_tokens = int(before.rows()), count = first_tokens + int(window.rows()), has_masked = false;
        gather(before, 0);
        gather(window, first_tokens);
        const int32_t never = 0;
        for (int j = count; j < padded(count); ++j) {
            memcpy(sees + j, &never, 4);
            fill_row(keys + int64_t(j) * s.ld, s.d, 0);
            fill_row(values + int64_t(j) * s.le, s.e, 0);
        }
        transpose(padded(count), s.dim, keys, s.ld, keys_t, pitch_of);
        all_finite = !head.near_far.is_causal || finite_values();
    }
    // How many of the keys a row sees.
    int seen_by(int64_t row) const { return head.near_far.is_causal ? first_tokens + int(row - window.first) + 1 : count; }

   private:
    void gather(const Span& rows, int at) {
        const int n = int(rows.rows());
        load_values(head.k, head.mask, rows.first, n, keys + int64_t(at) * s.ld, s.ld);
        load_values(head.v, head.mask, rows.first, n, values + int64_t(at) * s.le, s.le);
        for (int j = 0; j < n; ++j) {
            const bool counts = head.mask.counts(rows.first + j);
            const int32_t bits = counts ? -1 : 0;
            memcpy(sees + at + j, &bits, 4);
            has_masked |= !counts;
        }
    }
    bool finite_values() const {
        vi bad = {};
        for (int j = 0; j < count; ++j)
            for (int m = 0; m < s.e; m += W) bad |= LLN_ISA::load(values + int64_t(j) * s.le + m) * 0 != vf{};
        return !any(bad);
    }
};

}  // namespace LLN_ISA
