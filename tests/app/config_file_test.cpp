#include <gtest/gtest.h>

#include "app/programs.hpp"

namespace cifar_mpi::test {
namespace {

TEST_F(Programs, TakeEveryRecipe) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CIFAR_MPI_SOURCE_ROOT "/jobs/recipes")) {
    ++recipes;
    const std::string path = entry.path().string(), name = entry.path().stem().string();
    const std::string model = name.substr(0, name.find('-'));  // NAME-VARIANT is another recipe of that model
    const Outcome printed = run_command(kTrain + " --config " + path + " --print-config");
    EXPECT_EQ(printed.code, 0) << path;
    EXPECT_TRUE(contains(printed.output, "model=\"" + model + "\"")) << path;
    if (name == model) {
      EXPECT_EQ(run_command(kTrain + " --model " + model + " --print-config").output, printed.output) << path;
    }
  }
  EXPECT_GE(recipes, 5);
}

TEST_F(Programs, LetOptionsReplaceWhatAModelBrings) {
  const auto printed = [&](const std::string& options) {
    return output_of(run_command(kTrain + " --model resnet20 --print-config " + options));
  };
  const auto expect = [&](const std::string& text, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) EXPECT_TRUE(contains(text, "\n" + line + "\n")) << line;
  };
  expect(printed(""),
         {"optimizer=\"momentum\"", "schedule=\"steps\"", "decay-at=\"0.5,0.75\"", "global-batch=128",
          "augment=\"crop\"", "normalize=\"dataset\"", "run-dir=\"runs/resnet20\""});
  // If a block's first option is overridden, the others are dropped.
  expect(printed("--lr 0.2 --decay-at 0.25"), {"lr=0.2", "optimizer=\"momentum\"", "decay-at=\"0.25\""});
  expect(printed("--schedule steps"), {"decay-at=\"0.5,0.75\""});
  expect(printed("--schedule cosine"), {"schedule=\"cosine\"", "decay-at=\"\"", "optimizer=\"momentum\""});
  expect(printed("--optimizer adamw"), {"lr=0.001", "weight-decay=0.0001", "schedule=\"steps\""});
  expect(printed("--optimizer adamw --lr 0.01"), {"lr=0.01", "weight-decay=0.0001"});
  expect(printed("--optimizer nesterov"), {"lr=0.1", "weight-decay=0.0001"});
  expect(printed("--augment tutorial"), {"normalize=\"image\""});
  expect(printed("--batch-size 32"), {"batch-size=32", "global-batch=\"auto\""});
  expect(printed("--accumulate 4"), {"batch-size=128", "accumulate=4", "global-batch=\"auto\""});
  expect(printed("--steps 10"), {"steps=10", "# epochs=163.84"});
  for (const auto& [length, tail] : {std::pair{"", "0.375"},
                                     {"--epochs 8.875", "0.375"},
                                     {"--epochs 10", "\"off\""},
                                     {"--steps 10", "\"off\""}})
    expect(printed(concat("--model fast94 ", length)), {concat("tail-epochs=", tail)});
  // A file overrides the recipe.
  write_file(file("c.toml"), "model = \"resnet20\"\nschedule = \"cosine\"\n");
  const Outcome from_file = run_command(kTrain + " --print-config --config " + file("c.toml"));
  expect(from_file.output, {"schedule=\"cosine\"", "decay-at=\"\"", "optimizer=\"momentum\""});
  expect_refusal(run_command(kTrain + " --model resnet20 --flip off --cutout -1"), 2, "--cutout");
  expect_refusal(run_command(kTrain + " --model resnet20 --normalize dataset --augment tutorial"), 2,
                 "--normalize");
}

TEST_F(Programs, LetTheNearerOfTwoWaysToSayOneThingHold) {
  write_file(file("c.toml"), "global-batch = 256\nsteps = 100\n");
  const auto expect = [&](const std::string& options, const std::vector<std::string>& lines) {
    const Outcome printed = run_command(kTrain + " --print-config --config " + file("c.toml") + options);
    for (const std::string& line : lines) EXPECT_TRUE(contains(printed.output, "\n" + line + "\n")) << line;
  };
  expect("", {"global-batch=256", "# batch-size=128", "steps=100", "# epochs=256"});
  expect(" --batch-size 32 --epochs 3",
         {"global-batch=\"auto\"", "batch-size=32", "steps=\"auto\"", "epochs=3"});
  expect(" --global-batch 32 --steps 3", {"global-batch=32", "steps=3"});
  write_file(file("c.toml"), "batch-size = 64\nglobal-batch = \"auto\"\nepochs = 2\n");
  expect(" --global-batch 32 --steps 3", {"global-batch=32", "# batch-size=64", "steps=3", "# epochs=2"});
}

TEST_F(Programs, RefuseTwoWaysToSayOneThingFromOneSource) {
  expect_refusal(run_command(kTrain + " --steps 3 --epochs 2"), 2,
                 "--steps and --epochs both set the length");
  expect_refusal(run_command(kTrain + " --batch-size 64 --global-batch 256"), 2,
                 "--global-batch and --batch-size both set the samples of a step; give one of them");
  EXPECT_EQ(run_command(kTrain + " --steps auto --epochs 2 --print-config").code, 0);
  write_file(file("both.toml"), "epochs = 2\n\nsteps = 3\n");
  expect_refusal(run_command(kTrain + " --config " + file("both.toml")), 2,
                 file("both.toml") + ":3: steps and epochs both set the length of the run");
}

TEST_F(Programs, PrintAConfigurationThatReadsBackWhateverTheValues) {
  const std::vector<std::string> texts{
      "a # b; c", "\"quoted\" 'too'", "back\\slash\\n", "two\nlines", "[1, 2]", "\ttab ",
      "{a = 1}",  "\x01\x7f ",        "\u00e4\u20ac",   "1e5",        "true",   "a=b"};
  for (const std::string& text : texts) {
    SCOPED_TRACE(text);
    // run-dir is the only text option without further restrictions, except that it must not be empty.
    const std::string printed =
        output_of(run_command(kTrain + " --run-dir " + in_quotes(text) + " --data " + in_quotes(text) +
                              " --resume " + in_quotes(text) + " --print-config"));
    write_file(file("nasty.toml"), printed);
    const std::string read = kTrain + " --config " + file("nasty.toml");
    EXPECT_EQ(run_command(read + " --print-config").output, printed);
    // The parsed value is the text itself: the command line gives the same.
    EXPECT_EQ(run_command(read + " --run-dir " + in_quotes(text) + " --print-config").output, printed);
  }
}

TEST_F(Programs, PrintEveryOptionSoThatItReadsBack) {
  const std::string defaults = run_command(kTrain + " --print-config").output;
  const std::string printed = output_of(run_command(
      kTrain +
      " --data d --run-dir r --resume never --seed 18446744073709551615 --device cpu --precision bf16 "
      "--threads 3 --runner serial --all-reduce doubling --bucket-mib 0.12345678901234567 --reproducible "
      "--micro-shards 16 --overlap off --global-batch 9223372036854775807 --epochs 0.30000000000000004 "
      "--augment none --shuffle global --lr 1e-300 --lr-decay-factor 0.25 --lr-scaling sqrt --warmup-epochs "
      "2 --weight-decay 0 --ema-decay 0.5 --log-every 3 --eval-every 0.5 --checkpoint-every 9 --check-every "
      "8 --keep 2 --schedule steps --decay-at 0.5,0.75 --optimizer nesterov --momentum 0.85 --clip-norm 1.5 "
      "--label-smoothing 0.2 --print-config"));
  write_file(file("all.toml"), printed);
  EXPECT_EQ(run_command(kTrain + " --config " + file("all.toml") + " --print-config").output, printed);
  for (const char* line :
       {"seed=\"18446744073709551615\"\n", "bucket-mib=0.12345678901234566\n", "reproducible=true\n",
        "epochs=0.30000000000000004\n", "lr=1e-300\n", "overlap=\"off\"\n", "decay-at=\"0.5,0.75\"\n"}) {
    EXPECT_FALSE(contains(defaults, line));
    EXPECT_TRUE(contains(printed, line));
  }
}

TEST_F(Programs, PrintNumbersInOneSpellingAndWordsForZero) {
  const Outcome printed =
      run_command(kTrain + " --lr .5 --eps 1e-9 --optimizer adamw --keep-every 0 --print-config");
  for (const char* line :
       {"lr=0.5\n", "eps=1e-09\n", "keep-every=\"off\"\n", "clip-norm=\"off\"\n", "eval-every=\"end\"\n"})
    EXPECT_TRUE(contains(printed.output, line));
  EXPECT_EQ(
      run_command(kTrain + " --lr 0.5 --eps 1e-9 --optimizer adamw --keep-every off --print-config").output,
      printed.output);
}

TEST_F(Programs, PreferTheCommandLineToTheFile) {
  write_file(file("some.toml"), "lr = 0.5\nreproducible = false\nseed = 7 # lucky\nshuffle = \"global\"\n");
  const std::string read = kTrain + " --config " + file("some.toml") + " --print-config";
  const Outcome printed = run_command(read + " --lr 2 --reproducible");
  for (const char* line : {"lr=2", "seed=7", "reproducible=true", "shuffle=\"global\""})
    EXPECT_EQ(count_lines_with(printed.output, line), 1) << line << printed.output;
  EXPECT_EQ(count_lines_with(run_command(read).output, "reproducible=false"), 1);
  // a default undoes what the file sets, even where it has no effect
  write_file(file("flip.toml"), "flip = \"alternate\"\n");
  const std::string plain = kTrain + " --config " + file("flip.toml") + " --augment none --print-config";
  EXPECT_EQ(run_command(plain).code, 2);
  EXPECT_EQ(run_command(plain + " --flip random").code, 0);
  // what asks for nothing is never in vain
  EXPECT_EQ(run_command(kTrain + " --update local --image-size full --print-config").code, 0);
}

TEST_F(Programs, NameTheLineOfTheFileThatTheyRefuse) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"lr=", "key = value"},
      {"no-such-option = 1", "no-such-option"},
      {"configs = 1", "'configs' is no option that a file can hold; --print-config"},
      {"learning-rate = 1", "(did you mean lr?)"},
      {"config = \"x\"", "config"},
      {"help = true", "help"},
      {"version = true", "version"},
      {"print-config = true", "print-config"},
      {"lr = \"fast\"", "--lr"},
      {"lr = \"\"", "--lr has an empty value, as from an unset variable; give one, or leave it out"},
      {"resume = \"\"", "--resume has an empty value"},
      {"share-gpus = \"\"", "--share-gpus has an empty value"},
      {"batch-size = 1e3", "--batch-size"},
      {"lr = -1", "--lr must be above 0"},  // only checked when all options are known
      {"shuffle = \"sideways\"", "shuffle"},
      {"reproducible = 2", "true or false"},
      {"seed = 3\nseed = 4", "cannot redefine"},
      {"shuffle = global", "shuffle = \"global\""},
      {"[train]", "sections"},
  };
  for (const auto& [line, part] : cases) {
    SCOPED_TRACE(line);
    write_file(file("wrong.toml"), "# a comment\n\nkeep = 2\n" + line + "\n");
    const Outcome outcome = run_command(kTrain + " --print-config --config " + file("wrong.toml"));
    expect_refusal(outcome, 2, part);
    const int number = line.find('\n') == std::string::npos ? 4 : 5;
    EXPECT_TRUE(contains(outcome.output, file("wrong.toml") + ":" + std::to_string(number) + ": "));
  }
  expect_refusal(run_command(kTrain + " --config " + file("none.toml")), 2, file("none.toml"));
}

}  // namespace
}  // namespace cifar_mpi::test
