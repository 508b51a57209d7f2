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

#ifndef SOURCE
#define SOURCE 0u
#endif

/* CRC-32 of the source that this was built from. */
double fedtorch_source(void) { return (double)SOURCE; }

#define BLOCK 512 /* doubles of scratch: 4 KB, in the first cache */
#define LEAF 128  /* numbers that numpy adds without splitting them once more */

/* Copy past the caches, for what is written as a whole and read again only after much else: its lines are not fetched
   from memory before they are written, and push nothing else out. `streamed` comes before another thread may read. */
#if defined(__SSE2__)
#include <emmintrin.h>
static void stream(void *to, const void *from, size_t bytes)
{
    size_t at = (size_t)(-(uintptr_t)to & 15);
    if (at > bytes)
        at = bytes;
    memcpy(to, from, at);
    for (; at + 16 <= bytes; at += 16)
        _mm_stream_si128((__m128i *)((char *)to + at), _mm_loadu_si128((const __m128i *)((const char *)from + at)));
    memcpy((char *)to + at, (const char *)from + at, bytes - at);
}
static void streamed(void) { _mm_sfence(); }
#else
static void stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void streamed(void) {}
#endif

/* One binary for all processors: the vector instructions of the one it runs on. AVX2 has no fused multiply-add. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("default", "avx2")))
#endif
#endif
#ifndef CLONES
#define CLONES
#endif

/* The lowest set bit of a word that has one. */
#if defined(__GNUC__)
#define LOWEST(word) ((unsigned)__builtin_ctzll(word))
#else
static unsigned lowest(uint64_t word)
{
    unsigned bit = 0;
    for (; !(word & 1u); word >>= 1)
        bit++;
    return bit;
}
#define LOWEST(word) lowest(word)
#endif

/* Eight bytes as a number, the first one lowest: one load where bytes are in this order. */
#define EIGHT(from)                                                                                                    \
    ((uint64_t)(from)[0] | (uint64_t)(from)[1] << 8 | (uint64_t)(from)[2] << 16 | (uint64_t)(from)[3] << 24 |          \
     (uint64_t)(from)[4] << 32 | (uint64_t)(from)[5] << 40 | (uint64_t)(from)[6] << 48 | (uint64_t)(from)[7] << 56)

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

/* The numbers [start, stop) of total (+)= sum over k of rint(values[k] * factors[k]), + sums if there are any. With `out`
   the sum goes there, times `back`, rounded to its type, -0 as 0, and `total` stays as it is. squares: of what was added
   of each of `values` (with `each`; else of the last alone, without sums), then of `sums`, then of the whole sum if it
   went to `out`. */
#define DEFINE_FOLD(NAME, TYPE)                                                                                        \
    CLONES void NAME(const TYPE *const *values, const double *factors, size_t count, const double *sums, double *total,\
                     int fresh, TYPE *out, double back, int each, size_t start, size_t stop, double *squares)          \
    {                                                                                                                  \
        double block[BLOCK], whole[BLOCK];                                                                             \
        for (size_t k = 0; k < count + 2; k++)                                                                         \
            squares[k] = 0.0;                                                                                          \
        for (; start < stop; start += BLOCK) {                                                                         \
            size_t length = stop - start < BLOCK ? stop - start : BLOCK;                                               \
            if (fresh)                                                                                                 \
                memset(block, 0, length * sizeof(double));                                                             \
            else                                                                                                       \
                memcpy(block, total + start, length * sizeof(double));                                                 \
            for (size_t k = 0; k < count; k++) {                                                                       \
                const TYPE *restrict from = values[k] + start;                                                         \
                double factor = factors[k], lanes[8] = {0};                                                            \
                for (size_t i = 0; i < length; i++)                                                                    \
                    whole[i] = rint((double)from[i] * factor);                                                         \
                for (size_t i = 0; i < length; i++)                                                                    \
                    block[i] += whole[i];                                                                              \
                if (each || (k + 1 == count && !sums))                                                                 \
                    SQUARES(lanes, whole, length);                                                                     \
                squares[k] += TOTAL(lanes);                                                                            \
            }                                                                                                          \
            if (sums) { /* copied first: read once, as another process may write there meanwhile */                    \
                double lanes[8] = {0};                                                                                 \
                memcpy(whole, sums + start, length * sizeof(double));                                                  \
                for (size_t i = 0; i < length; i++)                                                                    \
                    block[i] += whole[i];                                                                              \
                SQUARES(lanes, whole, length);                                                                         \
                squares[count] += TOTAL(lanes);                                                                        \
            }                                                                                                          \
            if (out) {                                                                                                 \
                TYPE *restrict into = out + start;                                                                     \
                double lanes[8] = {0};                                                                                 \
                for (size_t i = 0; i < length; i++)                                                                    \
                    into[i] = (TYPE)(block[i] * back) + (TYPE)0;                                                       \
                SQUARES(lanes, block, length);                                                                         \
                squares[count + 1] += TOTAL(lanes);                                                                    \
            } else                                                                                                     \
                memcpy(total + start, block, length * sizeof(double));                                                 \
        }                                                                                                              \
    }

DEFINE_FOLD(fedtorch_fold_f32, float)
DEFINE_FOLD(fedtorch_fold_f64, double)

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
    CLONES static void subtract_##SUFFIX(const TYPE *restrict from, const TYPE *restrict values, TYPE *restrict out,   \
                                         size_t length)                                                                \
    {                                                                                                                  \
        for (size_t i = 0; i < length; i++)                                                                            \
            out[i] = from[i] - values[i];                                                                              \
    }                                                                                                                  \
    /* Of `values`; with `out` of a copy of them that goes there, with `from` of the difference from - values. */      \
    static double pairwise_##SUFFIX(const TYPE *from, const TYPE *values, TYPE *out, int streams, size_t length,       \
                                    BITS *largest)                                                                     \
    {                                                                                                                  \
        if (length <= LEAF) {                                                                                          \
            TYPE less[LEAF];                                                                                           \
            if (!out)                                                                                                  \
                return leaf_##SUFFIX(values, length, largest);                                                         \
            if (from)                                                                                                  \
                subtract_##SUFFIX(from, values, less, length);                                                         \
            else                                                                                                       \
                memcpy(less, values, length * sizeof(TYPE));                                                           \
            if (streams)                                                                                               \
                stream(out, less, length * sizeof(TYPE));                                                              \
            else                                                                                                       \
                memcpy(out, less, length * sizeof(TYPE));                                                              \
            return leaf_##SUFFIX(less, length, largest);                                                               \
        }                                                                                                              \
        size_t half = length / 2;                                                                                      \
        half -= half % 8;                                                                                              \
        double first = pairwise_##SUFFIX(from, values, out, streams, half, largest);                                   \
        return first + pairwise_##SUFFIX(from ? from + half : from, values + half, out ? out + half : out, streams,    \
                                         length - half, largest);                                                      \
    }                                                                                                                  \
    void fedtorch_norm_##SUFFIX(const TYPE *values, size_t length, size_t chunk, double *squares, TYPE *largest)       \
    {                                                                                                                  \
        for (size_t start = 0; start < length; start += chunk) {                                                       \
            BITS top = 0;                                                                                              \
            size_t part = length - start < chunk ? length - start : chunk;                                             \
            *squares++ = pairwise_##SUFFIX(NULL, values + start, NULL, 0, part, &top);                                 \
            memcpy(largest++, &top, sizeof top);                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    /* The same of out = from - values, which may be `values`, in the same pass; past the caches with `streams`. NULL  \
       for `from`: of out = values, each read once, as another process may write there meanwhile. */                   \
    void fedtorch_norm_difference_##SUFFIX(const TYPE *from, const TYPE *values, TYPE *out, int streams, size_t length,\
                                           size_t chunk, double *squares, TYPE *largest)                               \
    {                                                                                                                  \
        for (size_t start = 0; start < length; start += chunk) {                                                       \
            BITS top = 0;                                                                                              \
            size_t part = length - start < chunk ? length - start : chunk;                                             \
            const TYPE *first = from ? from + start : NULL;                                                            \
            *squares++ = pairwise_##SUFFIX(first, values + start, out + start, streams, part, &top);                   \
            memcpy(largest++, &top, sizeof top);                                                                       \
        }                                                                                                              \
        if (streams)                                                                                                   \
            streamed();                                                                                                \
    }

DEFINE_NORM(f32, float, uint32_t, 0x7fffffffu)
DEFINE_NORM(f64, double, uint64_t, 0x7fffffffffffffffu)

/* Past the caches. */
void fedtorch_copy(void *to, const void *from, size_t bytes)
{
    stream(to, from, bytes);
    streamed();
}

/* The places of the set bits of `bitmap`, lowest bit of a byte first, at most `room` of them; returns how many are set
   among those that were looked at, which is more than `room` where they do not fit. */
double fedtorch_places_of_bits(const uint8_t *bitmap, size_t bytes, int32_t *places, size_t room)
{
    size_t found = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        if (bytes - at >= 8)
            word = EIGHT(bitmap + at);
        else
            for (size_t byte = 0; at + byte < bytes; byte++)
                word |= (uint64_t)bitmap[at + byte] << 8 * byte;
        for (; word; word &= word - 1) {
            if (found == room)
                return (double)found + 1;
            places[found++] = (int32_t)(8 * at + LOWEST(word));
        }
    }
    return (double)found;
}

/* The values of at least `limit` in magnitude and their places; returns how many, or -1 where one of the values is NaN.
   There is room for all of them. */
#define DEFINE_REACHING(NAME, TYPE, ABS)                                                                               \
    CLONES double NAME(const TYPE *restrict values, size_t length, double limit, int32_t *restrict places,             \
                       TYPE *restrict passed)                                                                          \
    {                                                                                                                  \
        uint8_t reaches[BLOCK];                                                                                        \
        size_t found = 0;                                                                                              \
        for (size_t start = 0; start < length; start += BLOCK) {                                                       \
            size_t count = length - start < BLOCK ? length - start : BLOCK;                                            \
            const TYPE *restrict from = values + start;                                                                \
            uint8_t nan = 0;                                                                                           \
            if (count < BLOCK)                                                                                         \
                memset(reaches, 0, sizeof reaches);                                                                    \
            for (size_t i = 0; i < count; i++)                                                                         \
                reaches[i] = ABS(from[i]) >= (TYPE)limit;                                                              \
            for (size_t i = 0; i < count; i++)                                                                         \
                nan |= from[i] != from[i];                                                                             \
            if (nan)                                                                                                   \
                return -1.0;                                                                                           \
            for (size_t at = 0; at < BLOCK; at += 64) {                                                                \
                uint64_t bits = 0; /* one for each of 64 bytes, so that the loop ends once for all of them */          \
                for (size_t byte = 0; byte < 64; byte += 8)                                                            \
                    bits |= (EIGHT(reaches + at + byte) * 0x0102040810204080u >> 56) << byte;                          \
                for (; bits; bits &= bits - 1) {                                                                       \
                    size_t place = at + LOWEST(bits);                                                                  \
                    places[found] = (int32_t)(start + place);                                                          \
                    passed[found++] = from[place];                                                                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return (double)found;                                                                                          \
    }

DEFINE_REACHING(fedtorch_reaching_f32, float, fabsf)
DEFINE_REACHING(fedtorch_reaching_f64, double, fabs)

/* codes = floor(values * scales[power] + u), u from the place by SplitMix64; 1 where the power is 255. */
#define DEFINE_ROUND(NAME, TYPE)                                                                                       \
    CLONES double NAME(const TYPE *restrict values, const int32_t *restrict places, size_t length,                     \
                       const uint8_t *restrict powers, int shift, const double *restrict scales, uint64_t seed,        \
                       int8_t *restrict codes)                                                                         \
    {                                                                                                                  \
        double noise[BLOCK];                                                                                           \
        for (size_t start = 0; start < length; start += BLOCK) {                                                       \
            size_t count = length - start < BLOCK ? length - start : BLOCK;                                            \
            for (size_t i = 0; i < count; i++) {                                                                       \
                uint64_t bits = (uint64_t)places[start + i] * 0x9E3779B97F4A7C15u + seed;                              \
                bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;                                                      \
                bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;                                                      \
                bits ^= bits >> 31;                                                                                    \
                noise[i] = ((double)(uint32_t)(bits >> 32) + 0.5) * 0x1p-32;                                           \
            }                                                                                                          \
            for (size_t i = 0; i < count; i++) {                                                                       \
                uint8_t power = powers[places[start + i] >> shift];                                                    \
                double step = (double)values[start + i] * scales[power] + noise[i];                                    \
                codes[start + i] = power == 255 ? 1 : (int8_t)floor(step);                                             \
            }                                                                                                          \
        }                                                                                                              \
        return 0.0;                                                                                                    \
    }

DEFINE_ROUND(fedtorch_round_f32, float)
DEFINE_ROUND(fedtorch_round_f64, double)

/* values = codes * scales[power]; returns how many codes cannot be: -128, or not zero where the power is 0. */
double fedtorch_widen(const int8_t *restrict codes, const int32_t *restrict places, size_t length,
                      const uint8_t *restrict powers, int shift, const float *restrict scales, float *restrict values)
{
    size_t wrong = 0;
    for (size_t i = 0; i < length; i++) {
        uint8_t power = powers[places[i] >> shift];
        values[i] = scales[power] * (float)codes[i];
        wrong += (codes[i] == -128) | ((power == 0) & (codes[i] != 0));
    }
    return (double)wrong;
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

/* out = the sum of all terms' rint(values * factors[term]) * back at their ascending places, -0 as 0, `chunk` numbers at
   a time; returns how many values were left over, at places that do not ascend or are not in `out`. at: zeros. */
#define DEFINE_SUM(NAME, TYPE)                                                                                         \
    CLONES double NAME(const TYPE *const *values, const int32_t *const *places, const size_t *lengths,                 \
                       const double *factors, size_t *at, size_t terms, double back, double *restrict total,           \
                       size_t chunk, TYPE *restrict out, size_t size)                                                  \
    {                                                                                                                  \
        size_t left = 0;                                                                                               \
        for (size_t start = 0; start < size; start += chunk) {                                                         \
            size_t count = size - start < chunk ? size - start : chunk;                                                \
            memset(total, 0, count * sizeof(double));                                                                  \
            for (size_t term = 0; term < terms; term++) {                                                              \
                const TYPE *restrict from = values[term];                                                              \
                const int32_t *restrict where = places[term];                                                          \
                size_t i = at[term], length = lengths[term];                                                           \
                for (; i < length; i++) {                                                                              \
                    size_t place = (size_t)where[i] - start;                                                           \
                    if (place >= count)                                                                                \
                        break;                                                                                         \
                    total[place] += rint((double)from[i] * factors[term]) * back;                                      \
                }                                                                                                      \
                at[term] = i;                                                                                          \
            }                                                                                                          \
            for (size_t i = 0; i < count; i++)                                                                         \
                out[start + i] = (TYPE)total[i] + (TYPE)0;                                                             \
        }                                                                                                              \
        for (size_t term = 0; term < terms; term++)                                                                    \
            left += lengths[term] - at[term];                                                                          \
        return (double)left;                                                                                           \
    }

DEFINE_SUM(fedtorch_sum_f32, float)
DEFINE_SUM(fedtorch_sum_f64, double)

/* Sum of number * (word & (2^61 - 1)) modulo 2^61 - 1, of at most 4096 whole numbers below 2^53 in magnitude. */
#define PRIME (((uint64_t)1 << 61) - 1)
static uint64_t tag_of(const int64_t *numbers, const uint64_t *words, size_t length)
{
    uint64_t sides[2] = {0, 0}; /* of the products that are not negative, and of the others */
#ifdef __SIZEOF_INT128__
    __int128 sum = 0; /* 2^53 * 2^61 * 2^12 is below 2^127 */
    for (size_t i = 0; i < length; i++)
        sum += (__int128)numbers[i] * (int64_t)(words[i] & PRIME);
    unsigned __int128 size = sum < 0 ? -(unsigned __int128)sum : (unsigned __int128)sum;
    size = (size & PRIME) + (size >> 61); /* below 2^68 */
    size = (size & PRIME) + (size >> 61);
    sides[sum < 0] = (uint64_t)(size >= PRIME ? size - PRIME : size);
#else
    for (size_t i = 0; i < length; i++) {
        int64_t number = numbers[i];
        uint64_t word = words[i] & PRIME, size = (uint64_t)(number < 0 ? -number : number);
        uint64_t low = (uint32_t)size, high = size >> 32, below = (uint32_t)word, above = word >> 32;
        uint64_t middle = low * above + high * below, least = low * below; /* below 2^62; below 2^64 */
        uint64_t product = (least & PRIME) + (least >> 61) + (middle >> 29) + 8 * (high * above);
        product = (product & PRIME) + (product >> 61) + ((middle & (((uint64_t)1 << 29) - 1)) << 32);
        product = (product & PRIME) + (product >> 61) + sides[number < 0];
        product = (product & PRIME) + (product >> 61);
        sides[number < 0] = product >= PRIME ? product - PRIME : product;
    }
#endif
    return sides[0] >= sides[1] ? sides[0] - sides[1] : sides[0] + PRIME - sides[1];
}

/* The same of every `chunk` of them. */
double fedtorch_tags(const int64_t *numbers, const uint64_t *words, size_t length, size_t chunk, uint64_t *tags)
{
    for (size_t start = 0; start < length; start += chunk)
        *tags++ = tag_of(numbers + start, words + start, length - start < chunk ? length - start : chunk);
    return 0.0;
}

/* Philox4x32-10 (Salmon et al. 2011), as in Random123, with the key (seed, 0) and the counter (block, 0, 0). */
static void philox(uint32_t seed, uint64_t block, uint32_t word[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0, k0 = seed, k1 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)0xD2511F53u * c0, second = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)second;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)first;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

#define SIGNS 128 /* numbers that one block of Philox has the signs of */

/* The numbers `block` * SIGNS on of a seed's direction: bit i mod 32 of word i div 32, 1 is +1; or, with `bytes`, of
   word i mod 4 of block i div 4 the sum of its bytes - 510. */
CLONES static void direction(uint32_t seed, uint64_t block, int bytes, double *restrict z)
{
    uint32_t word[4];
    if (bytes) {
        for (int at = 0; at < SIGNS; at += 4) {
            philox(seed, block * (SIGNS / 4) + (uint64_t)(at / 4), word);
            for (int i = 0; i < 4; i++)
                z[at + i] = (double)((int)(word[i] & 255) + (int)(word[i] >> 8 & 255) + (int)(word[i] >> 16 & 255) +
                                     (int)(word[i] >> 24) - 510);
        }
        return;
    }
    philox(seed, block, word);
    for (int at = 0; at < SIGNS; at += 32)
        for (int i = 0; i < 32; i++) {
            uint64_t bits = (uint64_t)(~(word[at / 32] >> i) & 1u) << 63 | 0x3ff0000000000000u;
            memcpy(z + at + i, &bits, sizeof bits);
        }
}

/* out = values + amount * z of a seed, of which the first number is at `place`; every operation is rounded to TYPE. */
#define DEFINE_SHIFT(NAME, TYPE)                                                                                       \
    CLONES void NAME(const TYPE *values, TYPE *out, size_t length, uint64_t place, uint32_t seed, int bytes,           \
                     double amount)                                                                                    \
    {                                                                                                                  \
        double z[SIGNS];                                                                                               \
        for (size_t at = 0; at < length;) {                                                                            \
            size_t skipped = (size_t)((place + at) % SIGNS), count = SIGNS - skipped;                                  \
            count = length - at < count ? length - at : count;                                                         \
            direction(seed, (place + at) / SIGNS, bytes, z);                                                           \
            for (size_t i = 0; i < count; i++)                                                                         \
                out[at + i] = values[at + i] + (TYPE)z[skipped + i] * (TYPE)amount;                                    \
            at += count;                                                                                               \
        }                                                                                                              \
    }

DEFINE_SHIFT(fedtorch_shift_f32, float)
DEFINE_SHIFT(fedtorch_shift_f64, double)

/* total += sum over k of amounts[k] * z of seeds[k]: whole numbers, which stay below 2^53. */
CLONES void fedtorch_along(double *total, size_t length, uint64_t place, const uint32_t *seeds, const double *amounts,
                           size_t count, int bytes)
{
    double z[SIGNS], sum[SIGNS];
    for (size_t at = 0; at < length;) {
        size_t skipped = (size_t)((place + at) % SIGNS), part = SIGNS - skipped;
        part = length - at < part ? length - at : part;
        memset(sum, 0, sizeof sum);
        for (size_t k = 0; k < count; k++) {
            direction(seeds[k], (place + at) / SIGNS, bytes, z);
            for (int i = 0; i < SIGNS; i++)
                sum[i] += z[i] * amounts[k];
        }
        for (size_t i = 0; i < part; i++)
            total[at + i] += sum[skipped + i];
        at += part;
    }
}
