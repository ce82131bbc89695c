/* SPDX-License-Identifier: Apache-2.0 */
#include "core_model.h"

bool model_is_ready(const struct model *model, unsigned s, uint32_t word, uint64_t value) {
    return (int64_t)(model->sessions[s].page->fences[word] - value) >= 0;
}

/* The session gave the lease up, and its stream has not written the value. */
void model_fence_lease(struct model *model, unsigned l, uint32_t word, uint64_t value) {
    struct model_lease *lease = &model->leases[l];
    must(!lease->fenced && !model_is_ready(model, lease->session, word, value));
    model->old_names[random_below(MODEL_OLD_NAMES)] = (struct proto_lease_name){lease->id, lease->generation};
    lease->fenced = true;
    lease->word = word;
    lease->value = value;
    lease->order = ++model->next_order;
    model->blocks[lease->block].live--;
    model->blocks[lease->block].fenced++;
    model->sessions[lease->session].fenced++;
    model->fences++;
}

/* A lost session's fences mean nothing any more. */
void model_lose_fences(struct model *model, unsigned s) {
    for (unsigned l = 0; l < MODEL_LEASES; l++)
        if (model->leases[l].used && model->leases[l].session == s && model->leases[l].fenced) {
            model->leases[l].fenced = false;
            model->blocks[model->leases[l].block].fenced--;
            model->blocks[model->leases[l].block].live++;
            model->sessions[s].fenced--;
        }
}

/* Takes notice of the leases that the core has let go of: their fences have to be ready. */
void model_see_arrivals(struct model *model) {
    for (unsigned l = 0; l < MODEL_LEASES; l++) {
        const struct model_lease *lease = &model->leases[l];
        if (!lease->used || !lease->fenced)
            continue;
        const struct lease *there = model->core->leases.slots[lease->id - 1];
        if (there != NULL && there->generation == lease->generation)
            continue;
        must(model_is_ready(model, lease->session, lease->word, lease->value));
        model_remove_lease(model, l);
        model->arrivals++;
    }
}

static unsigned pool_of(const struct model *model, const struct model_lease *lease) {
    return model->segments[model->blocks[lease->block].segment].pool;
}

/* Whether the core lets go of the lease when it looks: it is ready, and so is what was released before it
 * behind the same word. */
static bool has_arrived(const struct model *model, const struct model_lease *lease) {
    if (!lease->used || !lease->fenced || !model_is_ready(model, lease->session, lease->word, lease->value))
        return false;
    for (unsigned l = 0; l < MODEL_LEASES; l++) {
        const struct model_lease *other = &model->leases[l];
        if (other->used && other->fenced && other->session == lease->session && other->word == lease->word &&
            other->order < lease->order && pool_of(model, other) == pool_of(model, lease) &&
            !model_is_ready(model, other->session, other->word, other->value))
            return false;
    }
    return true;
}

unsigned model_arrived(const struct model *model, unsigned s) {
    unsigned arrived = 0;
    for (unsigned l = 0; l < MODEL_LEASES && model->sessions[s].fenced > 0; l++)
        arrived += model->leases[l].session == s && has_arrived(model, &model->leases[l]);
    return arrived;
}

bool model_overlooked(const struct model *model, unsigned s, unsigned p) {
    for (unsigned l = 0; l < MODEL_LEASES; l++) {
        const struct model_lease *lease = &model->leases[l];
        if (lease->used && lease->fenced &&
            model->sessions[lease->session].tenant == model->sessions[s].tenant &&
            pool_of(model, lease) == p &&
            model->blocks[lease->block].live + model->blocks[lease->block].lost == 0 &&
            has_arrived(model, lease))
            return true;
    }
    return false;
}
