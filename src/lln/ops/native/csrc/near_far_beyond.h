// Sums of everything beyond a gap, for places asked for in rising order, in memory that grows with the root of their number.
//
// There are `count` items. beyond(i) is the sum of the items i + gap + 1, i + gap + 2, ..., count - 1. A first pass, from the last
// item down, keeps it for the last place of every stretch of about sqrt(count) places; on entering a stretch, those of its other
// places are found from there. Sums are only ever added to: taking an item away from a total would lose its digits.
#pragma once
#include "rows.h"

namespace LLN_ISA {

// Sums: a sum in memory that it is constructed on, with combine(a, b, to, shape) and copy(from, to, shape).
// Running: a sum that many items are merged into, with merge(running, item, shape).
template <class Sums, class Running, class Shape, class Items>
class Beyond {
   public:
    Beyond(const Shape& shape, int64_t count, int64_t gap, Items& items)
        : shape_(shape), count_(count), gap_(gap), stretch_(stretch(count)), items_(items),
          ends_((count + stretch_ - 1) / stretch_ * Sums::floats(shape)), inside_(stretch_ * Sums::floats(shape)) {
        Buffer memory(Running::floats(shape));
        const Running sum(memory, shape);
        sum.clear(shape);
        int64_t next = count - 1;  // the first item that is not in the sum yet
        for (int64_t first = (count - 1) / stretch_ * stretch_; first >= 0; first -= stretch_) {
            const int64_t last_place = least(first + stretch_, count) - 1;
            for (; next > last_place + gap; --next) merge(sum, items(next), shape);
            copy(sum, at(ends_, first / stretch_), shape);
        }
    }

    Sums operator()(int64_t place) {
        const int64_t first = place / stretch_ * stretch_;
        if (place == first) enter(first);
        return at(inside_, place - first);
    }

   private:
    static int64_t stretch(int64_t count) {
        int64_t root = 8;
        while (root * root < count) ++root;
        return root;
    }
    Sums at(float* memory, int64_t i) const { return Sums(memory + i * Sums::floats(shape_), shape_); }
    void enter(int64_t first) {
        const int64_t last = least(first + stretch_, count_) - 1;
        copy(at(ends_, first / stretch_), at(inside_, last - first), shape_);
        for (int64_t place = last - 1; place >= first; --place) {
            const Sums to = at(inside_, place - first), after = at(inside_, place + 1 - first);
            if (place + gap_ + 1 < count_) combine(items_(place + gap_ + 1), after, to, shape_);
            else copy(after, to, shape_);
        }
    }

    const Shape& shape_;
    const int64_t count_, gap_, stretch_;
    Items& items_;
    Buffer ends_, inside_;
};

}  // namespace LLN_ISA
