/* The class NativePasses of passes.py, in which the formulas are: for float, or with -DDOUBLE=1 for double. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#if DOUBLE
typedef double real;
typedef int64_t bits;
enum { DEGREE = 13, MANTISSA = 52, BIAS = 1023 };
#else
typedef float real;
typedef int32_t bits;
enum { DEGREE = 7, MANTISSA = 23, BIAS = 127 };
#endif

/* Short runs are summed in `real`, which vectorises, and their sums in double. */
enum { RUN = 256 };

/* ln(2)^i / i! */
static const real TAYLOR[] = {
    1.0, 0.6931471805599453, 0.2402265069591007, 0.055504108664821576, 0.009618129107628477, 0.0013333558146428441,
    0.00015403530393381606, 1.5252733804059838e-05, 1.3215486790144305e-06, 1.0178086009239696e-07,
    7.054911620801121e-09, 4.44553827187081e-10, 2.5678435993488196e-11, 1.3691488853904124e-12,
};

/* 2^x to the last bits, for x whose result is a normal number. */
static inline real power_of_two(real x) {
    real whole = sizeof(real) == 8 ? rint(x) : rintf(x), rest = x - whole, y = TAYLOR[DEGREE];
#pragma GCC unroll 16
    for (int i = DEGREE - 1; i >= 0; i--) y = y * rest + TAYLOR[i];
    bits exponent = ((bits)whole + BIAS) << MANTISSA;
    real power;
    memcpy(&power, &exponent, sizeof(real));
    return y * power;
}

static inline int64_t end_of_run(int64_t start, int64_t stop) { return start + RUN < stop ? start + RUN : stop; }

void weigh(real *scores, int64_t rows, int64_t k, int64_t stride, int threads, real *sums, real lowest, real scale,
           double share, real *peak, int64_t *best, real *log_sum, real *purity, real *entropy) {
#pragma omp parallel num_threads(threads)
    {
        real *usage = sums + omp_get_thread_num() * k;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            real *w = scores + i * stride, top = -INFINITY;
            int64_t index = 0;
            for (int64_t start = 0; start < k; start += RUN) {
                real highest = -INFINITY;
#pragma omp simd reduction(max : highest)
                for (int64_t j = start; j < end_of_run(start, k); j++) highest = w[j] > highest ? w[j] : highest;
                if (highest > top) top = highest, index = start;
            }
            while (index < k - 1 && w[index] != top) index++;
            double total = 0, squares = 0, weighted = 0;
            for (int64_t start = 0; start < k; start += RUN) {
                real a = 0, b = 0, c = 0;
#pragma omp simd reduction(+ : a, b, c)
                for (int64_t j = start; j < end_of_run(start, k); j++) {
                    real x = (w[j] - top) * scale;
                    x = x < lowest ? lowest : x;
                    real e = power_of_two(x);
                    w[j] = e;
                    a += e;
                    b += e * e;
                    c += e * x;
                }
                total += a, squares += b, weighted += c;
            }
            real part = share / total;
#pragma omp simd
            for (int64_t j = 0; j < k; j++) usage[j] += w[j] * part;
            peak[i] = top;
            best[i] = index;
            log_sum[i] = log(total);
            purity[i] = squares / (total * total);
            entropy[i] = log(total) - weighted / total * TAYLOR[1];
        }
    }
}

static inline double weigh_gradient(real *p, real *dp, int64_t from, int64_t to, real shift, real lowest, real of_p,
                                    real of_log) {
    double total = 0;
    for (int64_t start = from; start < to; start += RUN) {
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = start; j < end_of_run(start, to); j++) {
            real x = p[j] - shift < lowest ? lowest : p[j] - shift, e = power_of_two(x);
            real d = (dp[j] + of_log * x + of_p * e) * e;
            p[j] = e;
            dp[j] = d;
            sum += d;
        }
        total += sum;
    }
    return total;
}

void differentiate(real *log_weights, real *dp, int64_t rows, int64_t k, int64_t stride, int threads, real *sums,
                   real lowest, const int64_t *best, const real *log_sum, const real *of_p, const real *of_log) {
#pragma omp parallel num_threads(threads)
    {
        real *columns = sums + omp_get_thread_num() * k;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            real *p = log_weights + i * stride, *d = dp + i * stride;
            int64_t b = best[i];
            real log_best = -log_sum[i] / TAYLOR[1], shift = p[b] - log_best;
            real total = weigh_gradient(p, d, 0, b, shift, lowest, of_p[i], of_log[i]) +
                         weigh_gradient(p, d, b + 1, k, shift, lowest, of_p[i], of_log[i]);
            p[b] = power_of_two(log_best < lowest ? lowest : log_best);
            d[b] = 0;
#pragma omp simd
            for (int64_t j = 0; j < k; j++) {
                d[j] -= p[j] * total;
                columns[j] += d[j];
            }
        }
    }
}
