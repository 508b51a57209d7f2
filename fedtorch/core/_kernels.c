/* Loops over flat vectors that are bound by memory, each in one pass; `kernels.py` calls them through ctypes.

   Every function gives the bits of the numpy expressions in `kernels.py`, NaN's sign and payload aside: products and
   sums are rounded one by one (-ffp-contract=off, never -ffast-math), `rint` rounds ties to even, and where the order
   of additions shows (squares of a norm) it is numpy's pairwise one. No Python headers are needed. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "these flags or this processor round otherwise than numpy; the numpy loops are used"
#endif

#define BLOCK 512 /* doubles of scratch: 4 KB, in the first cache */
#define LEAF 128  /* numbers that numpy adds without splitting them once more */

/* One binary for all processors: the vector instructions of the one it runs on. AVX2 has no fused multiply-add. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("default", "avx2")))
#endif
#endif
#ifndef CLONES
#define CLONES
#endif

/* Sum of squares in eight lanes; its last bits are nobody's concern. */
#define SQUARES(lanes, values, count)                                                                                  \
    do {                                                                                                               \
        size_t at_ = 0;                                                                                                \
        for (; at_ + 8 <= (count); at_ += 8)                                                                           \
            for (int lane_ = 0; lane_ < 8; lane_++)                                                                    \
                lanes[lane_] += (values)[at_ + lane_] * (values)[at_ + lane_];                                         \
        for (; at_ < (count); at_++)                                                                                   \
            lanes[0] += (values)[at_] * (values)[at_];                                                                 \
    } while (0)

#define TOTAL(r) (((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7])))

/* total (+)= rint(values * factor); returns the sum of the squares of what was added. */
#define DEFINE_ADD(NAME, TYPE)                                                                                         \
    CLONES double NAME(const TYPE *restrict values, double *restrict total, size_t length, double factor, int fresh)   \
    {                                                                                                                  \
        double lanes[8] = {0}, whole[BLOCK];                                                                           \
        for (size_t start = 0; start < length; start += BLOCK) {                                                       \
            size_t count = length - start < BLOCK ? length - start : BLOCK;                                            \
            const TYPE *restrict from = values + start;                                                                \
            double *restrict into = total + start;                                                                     \
            for (size_t i = 0; i < count; i++)                                                                         \
                whole[i] = rint((double)from[i] * factor);                                                             \
            if (fresh)                                                                                                 \
                memcpy(into, whole, count * sizeof(double));                                                           \
            else                                                                                                       \
                for (size_t i = 0; i < count; i++)                                                                     \
                    into[i] += whole[i];                                                                               \
            SQUARES(lanes, whole, count);                                                                              \
        }                                                                                                              \
        return TOTAL(lanes);                                                                                           \
    }

DEFINE_ADD(fedtorch_add_f32, float)
DEFINE_ADD(fedtorch_add_f64, double)

/* total (+)= sums; returns the sum of their squares. */
CLONES double fedtorch_add_sum(const double *restrict sums, double *restrict total, size_t length, int fresh)
{
    double lanes[8] = {0};
    for (size_t start = 0; start < length; start += BLOCK) {
        size_t count = length - start < BLOCK ? length - start : BLOCK;
        const double *restrict from = sums + start;
        double *restrict into = total + start;
        if (fresh)
            memcpy(into, from, count * sizeof(double));
        else
            for (size_t i = 0; i < count; i++)
                into[i] += from[i];
        SQUARES(lanes, from, count);
    }
    return TOTAL(lanes);
}

/* out = total * factor, rounded to its type, -0 as 0; returns the sum of the squares of `total`. */
#define DEFINE_RESULT(NAME, TYPE)                                                                                      \
    CLONES double NAME(const double *restrict total, TYPE *restrict out, size_t length, double factor)                 \
    {                                                                                                                  \
        double lanes[8] = {0};                                                                                         \
        for (size_t start = 0; start < length; start += BLOCK) {                                                       \
            size_t count = length - start < BLOCK ? length - start : BLOCK;                                            \
            const double *restrict from = total + start;                                                               \
            TYPE *restrict into = out + start;                                                                         \
            for (size_t i = 0; i < count; i++)                                                                         \
                into[i] = (TYPE)(from[i] * factor) + (TYPE)0;                                                          \
            SQUARES(lanes, from, count);                                                                               \
        }                                                                                                              \
        return TOTAL(lanes);                                                                                           \
    }

DEFINE_RESULT(fedtorch_result_f32, float)
DEFINE_RESULT(fedtorch_result_f64, double)

/* Of each chunk: the sum of squares in numpy's pairwise order, and the bits of the largest absolute value (as integers
   these are in the order of the values, NaN above infinity). */
#define DEFINE_NORM(SUFFIX, TYPE, BITS, MASK)                                                                          \
    CLONES static double leaf_##SUFFIX(const TYPE *restrict values, size_t length, BITS *restrict largest)             \
    {                                                                                                                  \
        double squares[LEAF], sum = 0.0;                                                                               \
        BITS top = *largest;                                                                                           \
        for (size_t i = 0; i < length; i++)                                                                            \
            squares[i] = (double)values[i] * (double)values[i];                                                        \
        for (size_t i = 0; i < length; i++) {                                                                          \
            BITS bits;                                                                                                 \
            memcpy(&bits, values + i, sizeof bits);                                                                    \
            bits &= MASK;                                                                                              \
            top = bits > top ? bits : top;                                                                             \
        }                                                                                                              \
        *largest = top;                                                                                                \
        size_t at = 0;                                                                                                 \
        if (length >= 8) {                                                                                             \
            double lanes[8];                                                                                           \
            memcpy(lanes, squares, sizeof lanes);                                                                      \
            for (at = 8; at + 8 <= length; at += 8)                                                                    \
                for (int lane = 0; lane < 8; lane++)                                                                   \
                    lanes[lane] += squares[at + lane];                                                                 \
            sum = TOTAL(lanes);                                                                                        \
        }                                                                                                              \
        for (; at < length; at++)                                                                                      \
            sum += squares[at];                                                                                        \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static double pairwise_##SUFFIX(const TYPE *values, size_t length, BITS *largest)                                  \
    {                                                                                                                  \
        if (length <= LEAF)                                                                                            \
            return leaf_##SUFFIX(values, length, largest);                                                             \
        size_t half = length / 2;                                                                                      \
        half -= half % 8;                                                                                              \
        double first = pairwise_##SUFFIX(values, half, largest);                                                       \
        return first + pairwise_##SUFFIX(values + half, length - half, largest);                                       \
    }                                                                                                                  \
    void fedtorch_norm_##SUFFIX(const TYPE *values, size_t length, size_t chunk, double *squares, TYPE *largest)       \
    {                                                                                                                  \
        for (size_t start = 0; start < length; start += chunk) {                                                       \
            BITS top = 0;                                                                                              \
            *squares++ = pairwise_##SUFFIX(values + start, length - start < chunk ? length - start : chunk, &top);     \
            memcpy(largest++, &top, sizeof top);                                                                       \
        }                                                                                                              \
    }

DEFINE_NORM(f32, float, uint32_t, 0x7fffffffu)
DEFINE_NORM(f64, double, uint64_t, 0x7fffffffffffffffu)

/* The places of the set bits of `bitmap`, lowest bit of a byte first, at most `room` of them; returns how many are set
   among those that were looked at, which is more than `room` where they do not fit. */
double fedtorch_places_of_bits(const uint8_t *bitmap, size_t bytes, int32_t *places, size_t room)
{
    size_t found = 0;
    for (size_t at = 0; at < bytes; at++) {
        unsigned byte = bitmap[at];
        if (found + 8 > room) { /* near the end: look before every one */
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1u) {
                    if (found == room)
                        return (double)found + 1;
                    places[found++] = (int32_t)(8 * at + bit);
                }
            continue;
        }
        for (int bit = 0; bit < 8; bit++) { /* without a jump: written over by the next one where the bit is not set */
            places[found] = (int32_t)(8 * at + bit);
            found += byte >> bit & 1u;
        }
    }
    return (double)found;
}

/* total[places - start] += rint(values * factor) * back; returns 0. */
#define DEFINE_SCATTER(NAME, TYPE)                                                                                     \
    double NAME(const TYPE *restrict values, const int32_t *restrict places, size_t length, double *restrict total,    \
                double factor, double back, size_t start)                                                              \
    {                                                                                                                  \
        for (size_t i = 0; i < length; i++)                                                                            \
            total[(size_t)places[i] - start] += rint((double)values[i] * factor) * back;                               \
        return 0.0;                                                                                                    \
    }

DEFINE_SCATTER(fedtorch_scatter_f32, float)
DEFINE_SCATTER(fedtorch_scatter_f64, double)
