/* A tree by number that is also a heap by rank. Ranks are as good as random, so it is about as deep
 * as a balanced one, whatever lanes come and go. */
#include "store/lanes.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>

/* Lanes next to each other get ranks that have nothing in common (splitmix64). */
static uint64_t rank_of(uint64_t number)
{
    number += 0x9e3779b97f4a7c15u;
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
    number = (number ^ number >> 27) * 0x94d049bb133111ebu;
    return number ^ number >> 31;
}

/* All numbers of `left` are smaller than those of `right`. */
static struct lane *join(struct lane *left, struct lane *right)
{
    if (!left || !right)
        return left ? left : right;
    if (left->rank > right->rank) {
        left->right = join(left->right, right);
        return left;
    }
    right->left = join(left, right->left);
    return right;
}

/* Into those below `number` and the others. */
static void split(struct lane *root, uint64_t number, struct lane **ret_left,
                  struct lane **ret_right)
{
    if (!root) {
        *ret_left = *ret_right = NULL;
    } else if (root->number < number) {
        *ret_left = root;
        split(root->right, number, &root->right, ret_right);
    } else {
        *ret_right = root;
        split(root->left, number, ret_left, &root->left);
    }
}

struct lane *lanes_find(const struct lanes *lanes, uint64_t number)
{
    struct lane *lane = lanes->root;

    while (lane && lane->number != number)
        lane = number < lane->number ? lane->left : lane->right;
    return lane;
}

struct lane *lanes_after(const struct lanes *lanes, uint64_t number)
{
    struct lane *found = NULL;

    for (struct lane *lane = lanes->root; lane;) {
        if (lane->number > number)
            found = lane;
        lane = lane->number > number ? lane->left : lane->right;
    }
    return found;
}

static struct lane *add(struct lanes *lanes, uint64_t number)
{
    struct lane *lane = mem_new(struct lane);
    struct lane *left, *right;

    lane->number = number;
    lane->rank = rank_of(number);
    split(lanes->root, number, &left, &right);
    lanes->root = join(join(left, lane), right);
    lanes->count++;
    return lane;
}

static void drop(struct lanes *lanes, struct lane *lane)
{
    struct lane **at = &lanes->root;

    while (*at != lane)
        at = lane->number < (*at)->number ? &(*at)->left : &(*at)->right;
    *at = join(lane->left, lane->right);
    lanes->count--;
    heap_free(&lane->jobs);
    free(lane);
}

void lanes_enter(struct lanes *lanes, uint64_t number, struct heap_node *job)
{
    struct lane *lane = lanes_find(lanes, number);

    assert(number != 0);
    if (!lane)
        lane = add(lanes, number);
    heap_add(&lane->jobs, job);
    lanes->job_count++;
}

void lanes_leave(struct lanes *lanes, uint64_t number, struct heap_node *job)
{
    struct lane *lane = lanes_find(lanes, number);

    assert(lane && job->at);
    heap_del(&lane->jobs, job);
    lanes->job_count--;
    if (lane->jobs.count == 0)
        drop(lanes, lane);
}

void lanes_free(struct lanes *lanes)
{
    while (lanes->root)
        drop(lanes, lanes->root);
    *lanes = (struct lanes){0};
}

void lanes_check(const struct lanes *lanes)
{
    size_t count = 0;
    size_t job_count = 0;
    struct lane *lane;

    for (uint64_t after = 0; (lane = lanes_after(lanes, after)); after = lane->number) {
        assert(lanes_find(lanes, lane->number) == lane);
        assert(!lane->left || lane->left->rank <= lane->rank);
        assert(!lane->right || lane->right->rank <= lane->rank);
        assert(lane->jobs.count > 0);
        for (size_t i = 1; i < lane->jobs.count; i++) {
            const struct heap_node *above = lane->jobs.nodes[(i - 1) / 2];
            const struct heap_node *job = lane->jobs.nodes[i];

            assert(above->key < job->key || (above->key == job->key && above->tie < job->tie));
        }
        count++;
        job_count += lane->jobs.count;
    }
    assert(count == lanes->count && job_count == lanes->job_count);
}
