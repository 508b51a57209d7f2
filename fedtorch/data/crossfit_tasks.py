"""The 117 tasks of FewFedWeight's appendix: who holds them, CrossFit's metric and sampling, the paper's group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GymTask:
    """A task of the gym."""

    name: str
    """as CrossFit calls it; that of its folder, and the beginning of its files' names"""
    metric: str
    """a name of `metrics.generation.METRICS`"""
    per_label: bool = False
    """are its few-shot examples counted per label (classification scripts of CrossFit) or for the whole task?"""
    group: str = "-"
    """of the paper, `-` where it has none"""
    clients: tuple[int, ...] = ()
    """the paper's clients that hold it (1 to 4), none for other tasks"""


# name, clients, metric, shots counted per, group. `aeslc` is listed for two clients, which makes 118 of 117 tasks;
# the paper's table of groups leaves kilt_hotpotqa out.
_TABLE = """
acronym_identification 1 EM task other
ade_corpus_v2-dosage 1 EM task other
ade_corpus_v2-effect 2 EM task other
adversarialqa 3 QA-F1 task QA
aeslc 1+4 Rouge-L task conditional_generation
anli 3 Classification-F1 label classification
app_reviews 4 Pearson-Correlation label other
aqua_rat 1 ACC task QA
aslg_pc12 2 EM task other
biomrc 2 QA-F1 task QA
blimp-anaphor_gender_agreement 4 ACC label other
blimp-anaphor_number_agreement 2 ACC label other
blimp-determiner_noun_agreement_with_adj_irregular_1 1 ACC label other
blimp-ellipsis_n_bar_1 1 ACC label other
blimp-ellipsis_n_bar_2 1 ACC label other
blimp-existential_there_quantifiers_1 4 ACC label other
blimp-irregular_past_participle_adjectives 3 ACC label other
blimp-wh_questions_object_gap 4 ACC label other
boolq 2 ACC label QA
break-QDMR-high-level 3 EM task other
climate_fever 4 Classification-F1 label classification
codah 1 Classification-F1 task QA
common_gen 3 Rouge-L task other
commonsense_qa 2 ACC task QA
cosmos_qa 3 ACC task QA
crows_pairs 3 ACC label other
dbpedia_14 4 Classification-F1 label classification
definite_pronoun_resolution 1 ACC task other
duorc 3 QA-F1 task QA
e2e_nlg_cleaned 1 Rouge-L task other
eli5-askh 2 Rouge-L task QA
emo 4 Classification-F1 label classification
emotion 4 Classification-F1 label classification
ethos-directed_vs_generalized 2 Classification-F1 label classification
ethos-gender 3 Classification-F1 label classification
ethos-national_origin 1 Classification-F1 label classification
ethos-race 2 Classification-F1 label classification
ethos-religion 2 Classification-F1 label classification
gigaword 4 Rouge-L task conditional_generation
glue-mnli 3 ACC label classification
glue-mrpc 1 ACC label classification
glue-qqp 2 ACC label classification
glue-rte 2 ACC label classification
glue-sst2 2 ACC label classification
glue-wnli 1 ACC label classification
google_wellformed_query 2 ACC label classification
hate_speech18 4 Classification-F1 label classification
hate_speech_offensive 2 Classification-F1 label classification
hellaswag 1 ACC task QA
hotpot_qa 4 QA-F1 task other
imdb 3 Classification-F1 label classification
jeopardy 2 EM task QA
kilt_ay2 1 EM task QA
kilt_hotpotqa 2 EM task -
kilt_nq 4 EM task QA
kilt_trex 4 EM task QA
kilt_wow 4 Rouge-L task conditional_generation
kilt_zsre 3 EM task QA
lama-conceptnet 2 EM task QA
lama-google_re 4 EM task QA
lama-squad 1 EM task QA
limit 3 EM task other
math_qa 1 ACC task QA
mc_taco 4 ACC label QA
medical_questions_pairs 3 ACC label classification
mocha 2 Pearson-Correlation label other
numer_sense 1 EM task QA
onestop_english 3 Classification-F1 label classification
openbookqa 1 ACC task QA
paws 2 Classification-F1 label classification
piqa 4 ACC label other
poem_sentiment 4 Classification-F1 label classification
proto_qa 3 EM task other
qa_srl 2 EM task other
qasc 3 ACC task QA
quail 4 ACC task QA
quarel 1 ACC task QA
quartz-no_knowledge 2 ACC task QA
quartz-with_knowledge 4 ACC task QA
race-middle 4 ACC task QA
ropes 4 QA-F1 task QA
rotten_tomatoes 4 Classification-F1 label classification
scicite 3 Classification-F1 label classification
sciq 4 ACC task QA
scitail 3 Classification-F1 label classification
search_qa 4 EM task QA
sick 2 Classification-F1 label classification
sms_spam 1 Classification-F1 label classification
social_i_qa 3 ACC task QA
spider 1 EM task conditional_generation
squad-no_context 1 EM task QA
squad-with_context 3 QA-F1 task QA
superglue-cb 4 ACC label classification
superglue-copa 4 ACC task QA
superglue-multirc 2 EM task QA
superglue-record 3 QA-F1 task QA
superglue-wic 2 ACC label classification
superglue-wsc 1 ACC label classification
swag 3 ACC task QA
tab_fact 1 Classification-F1 label classification
trec-finegrained 3 Classification-F1 label classification
tweet_eval-emoji 1 Classification-F1 label classification
tweet_eval-hate 2 Classification-F1 label classification
tweet_eval-offensive 1 Classification-F1 label classification
tweet_eval-sentiment 3 Classification-F1 label classification
tweet_eval-stance_abortion 2 Classification-F1 label classification
tweet_eval-stance_atheism 1 Classification-F1 label classification
tweet_eval-stance_climate 3 Classification-F1 label classification
tweet_eval-stance_feminist 3 Classification-F1 label classification
web_questions 3 EM task QA
wiki_auto 4 Classification-F1 label classification
wiki_qa 1 Classification-F1 label classification
wino_grande 4 ACC task QA
wiqa 2 ACC task QA
xsum 2 Rouge-L task conditional_generation
yahoo_answers_topics 4 Classification-F1 label classification
yelp_review_full 3 Pearson-Correlation label other
"""


def paper_tasks() -> Mapping[str, GymTask]:
    """The paper's tasks by name, in alphabetical order."""
    found = {}
    for line in _TABLE.split("\n"):
        if line:
            name, clients, metric, per, group = line.split()
            found[name] = GymTask(name, metric, per == "label", group, tuple(map(int, clients.split("+"))))
    return found
