/* A ResNet of bottlenecks for one picture, as a WebAssembly module with its weights in it. `wasm_file.py` compiles it, and says
 * what WIDTH, SIDE, WEIGHTS and SIZE are. Values are in rows, of these in columns, of these in channels: the innermost loop of a
 * convolution is over channels, four at a time. */

#define CLASSES 1000
#define LAYERS 4
#define EXPANSION 4
#define VALUES (SIDE / 2 * (SIDE / 2) * WIDTH) /* of the largest layer */

__asm__(".section .rodata.weights,\"\",@\n"
        ".globl weights\n"
        ".p2align 4\n"
        ".type weights,@object\n"
        "weights:\n"
        ".incbin \"" WEIGHTS "\"\n"
        ".size weights, " SIZE "\n");
extern const float weights[];

static const int blocks[LAYERS] = {3, 4, 6, 3};
static float image[SIDE * SIDE * 3], scores[CLASSES];
static float first[VALUES], second[VALUES], third[VALUES], around[VALUES];
static const float *next; /* of the weights */

__attribute__((export_name("image"))) float *image_address(void)
{
    return image;
}

__attribute__((export_name("scores"))) float *scores_address(void)
{
    return scores;
}

static void rectify(float *values, int count)
{
    for (int at = 0; at < count; at++)
        values[at] = values[at] > 0 ? values[at] : 0;
}

/* One value of each output, from the part of the input below the kernel. */
static void convolve_at(const float *from, int side, int inputs, float *to, int outputs, int kernel, int row, int column)
{
    for (int at = 0; at < outputs; at++)
        to[at] = 0;
    for (int down = 0; down < kernel; down++) {
        for (int along = 0; along < kernel; along++) {
            int y = row + down - kernel / 2, x = column + along - kernel / 2;
            const float *matrix = next + (down * kernel + along) * inputs * outputs;

            if (y < 0 || y >= side || x < 0 || x >= side)
                continue;
            for (int input = 0; input < inputs; input++) {
                float value = from[(y * side + x) * inputs + input];

                for (int at = 0; at < outputs; at++)
                    to[at] += value * matrix[input * outputs + at];
            }
        }
    }
}

/* Answers the side of the output. */
static int convolve(const float *from, int side, int inputs, float *to, int outputs, int kernel, int stride)
{
    int after = (side - 1) / stride + 1;

    for (int row = 0; row < after; row++)
        for (int column = 0; column < after; column++)
            convolve_at(from, side, inputs, to + (row * after + column) * outputs, outputs, kernel, row * stride,
                        column * stride);
    next += kernel * kernel * inputs * outputs;
    return after;
}

static int pool(const float *from, int side, float *to)
{
    int after = (side - 1) / 2 + 1;

    for (int at = 0; at < after * after * WIDTH; at++) {
        int row = at / WIDTH / after * 2, column = at / WIDTH % after * 2;
        float most = -1e30f;

        for (int y = row - 1; y <= row + 1; y++)
            for (int x = column - 1; x <= column + 1; x++)
                if (y >= 0 && y < side && x >= 0 && x < side && from[(y * side + x) * WIDTH + at % WIDTH] > most)
                    most = from[(y * side + x) * WIDTH + at % WIDTH];
        to[at] = most;
    }
    return after;
}

/* From `first` to `first`; answers the side of the output. */
static int bottleneck(int side, int inputs, int planes, int stride, int has_shortcut)
{
    int outputs = planes * EXPANSION, after;
    const float *other = first;

    convolve(first, side, inputs, second, planes, 1, 1);
    rectify(second, side * side * planes);
    after = convolve(second, side, planes, third, planes, 3, stride);
    rectify(third, after * after * planes);
    convolve(third, after, planes, second, outputs, 1, 1);
    if (has_shortcut) {
        convolve(first, side, inputs, around, outputs, 1, stride);
        other = around;
    }
    for (int at = 0; at < after * after * outputs; at++)
        first[at] = second[at] + other[at];
    rectify(first, after * after * outputs);
    return after;
}

/* The mean of each channel, and a sum of them for each class. Answers the class with most. */
static int classified(int side, int features)
{
    int best = 0;

    for (int at = 0; at < features; at++) {
        around[at] = 0;
        for (int where = 0; where < side * side; where++)
            around[at] += first[where * features + at] / (float)(side * side);
    }
    for (int class = 0; class < CLASSES; class++) {
        scores[class] = 0;
        for (int at = 0; at < features; at++)
            scores[class] += around[at] * next[class * features + at];
        if (scores[class] > scores[best])
            best = class;
    }
    return best;
}

__attribute__((export_name("classify"))) int classify(void)
{
    int side, inputs = WIDTH;

    next = weights;
    side = convolve(image, SIDE, 3, second, WIDTH, 7, 2);
    rectify(second, side * side * WIDTH);
    side = pool(second, side, first);
    for (int layer = 0; layer < LAYERS; layer++) {
        int planes = WIDTH << layer;

        for (int number = 0; number < blocks[layer]; number++) {
            side = bottleneck(side, inputs, planes, layer && !number ? 2 : 1, !number);
            inputs = planes * EXPANSION;
        }
    }
    return classified(side, inputs);
}
