PRAGMA application_id = 1466322279;
PRAGMA user_version = 13;
BEGIN TRANSACTION;
CREATE TABLE bus_positions(
  bus TEXT NOT NULL,
  topic TEXT NOT NULL,
  part INTEGER NOT NULL,
  position INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(bus, topic, part)
) WITHOUT ROWID, STRICT;
CREATE TABLE cells(
  job INTEGER NOT NULL,
  name TEXT NOT NULL,
  workflow TEXT NOT NULL,
  kind TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY(job, name)
) WITHOUT ROWID, STRICT;
CREATE TABLE confirmed(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "confirmed" VALUES(5,'[[1,[[5,1795915781455734974,[{"step":[1,"confirmed"]}]]]]]',2865349016);
INSERT INTO "confirmed" VALUES(20,'[[4,[[2,1795915781761874530,[{"step":[0,"confirmed"]}]]]]]',3679740575);
INSERT INTO "confirmed" VALUES(39,'[[10,[[2,1795915782042698119,[{"step":[0,"confirmed"]}]]]],[11,[[2,1795915782042720813,[{"step":[0,"confirmed"]}]]]],[12,[[2,1795915782042730307,[{"step":[0,"confirmed"]}]]]],[13,[[2,1795915782042709676,[{"step":[0,"confirmed"]}]]]]]',739829616);
INSERT INTO "confirmed" VALUES(49,'[[11,[[5,1795915782060106011,[{"step":[1,"confirmed"]}]]]]]',4101258935);
INSERT INTO "confirmed" VALUES(55,'[[14,[[7,1795915782125568562,[{"step":[1,"confirmed"]}]]]]]',321642690);
INSERT INTO "confirmed" VALUES(63,'[[16,[[14,1795915782338113431,[{"step":[2,"confirmed"]}]]]]]',1840627561);
INSERT INTO "confirmed" VALUES(68,'[[19,[[3,1795915782488478170,[{"step":[0,"confirmed"]}]]]]]',1261806144);
INSERT INTO "confirmed" VALUES(78,'[[23,[[2,1795915782614579334,[{"step":[0,"confirmed"]}]]]],[24,[[2,1795915782610065125,[{"step":[0,{"leased":{"delivery":1,"until":1795916120109025236}}]}]]]]]',1447608112);
CREATE TABLE controls(
  kind TEXT NOT NULL,
  bus TEXT NOT NULL,
  vhost TEXT NOT NULL,
  name TEXT NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(kind, bus, vhost, name)
) WITHOUT ROWID, STRICT;
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(3,X'CE28566515E3F3F6D49F128A7962CCC3F229B9D0F466721051B38139E6DB0BD9','{"name":"patient","deadline":315360000000,"graphs":[{"name":"patient","steps":[{"name":"late","queue":"late","timeout":311040000000,"retry":{"attempts":3,"backoff":259200000000,"factor_milli":2000,"max_backoff":259200000000}},{"name":"never","queue":"never","when":"input.never == true"},{"name":"last","queue":"last","depends":[{"step":0},{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(4,X'7F0B9811F22FD122D2F09CA2E39BA63FA3B3E2AC297FFD881F3B34921F343CE9','{"name":"person","graphs":[{"name":"person","steps":[{"name":"review","queue":"review","external":true,"status":{"words":["OPEN","APPROVED","REFUSED"]}},{"name":"tell","queue":"tell","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(5,X'9FCD72F820A7550E1446A9B5283931C59C278E589B24044A9CD1FCBD7713C6F2','{"name":"lenient","graphs":[{"name":"lenient","steps":[{"name":"parts","queue":"parts","task":1}]},{"name":"part","fan_out":{"list_key":"parts","item_key":"part","tolerate":{"count":1}},"steps":[{"name":"weld","queue":"weld"}]}]}');
INSERT INTO "definitions" VALUES(6,X'3A15DA5D129D3983A08F3DBF6B5EB956484256C630AE47427D533A004C241518','{"name":"timed","graphs":[{"name":"timed","steps":[{"name":"slow","queue":"slow","timeout":311040000000}]}]}');
INSERT INTO "definitions" VALUES(7,X'8D8DBEFD8F29DCD3AFF569B92D9A90FD4734FBE1E4738DFDE9938C1A6F245D61','{"name":"lent","bus":"embedded","graphs":[{"name":"lent","steps":[{"name":"held","queue":"held","bus":"embedded"}]}]}');
CREATE TABLE derived(upto INTEGER NOT NULL) STRICT;
INSERT INTO "derived" VALUES(78);
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  confirms TEXT,
  origin TEXT
) STRICT;
INSERT INTO "entries" VALUES(1,1,0,1795915781412299720,'[{"job":{"created":{"message":{"n":1,"large":12345678901234567890}}}},{"step":[0,{"started":{"attempt":1}}]}]',4272775154,NULL,'["00000000-0000-4000-8000-000000000001",1,0,1,null,null,null,0,1795915781408492681]');
INSERT INTO "entries" VALUES(3,1,3,1795915781452611339,'[{"step":[0,{"completed":{"n":1.1}}]},{"step":[1,{"started":{"attempt":1}}]}]',4244152029,'[[2,1795915781427525153,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(4,2,0,1795915781473093753,'[{"job":{"created":{"message":{"n":2}}}},{"step":[0,{"started":{"attempt":1}}]}]',3621331680,NULL,'["00000000-0000-4000-8000-000000000002",1,0,2,null,null,null,0,1795915781473057540]');
INSERT INTO "entries" VALUES(7,2,3,1795915781497335176,'[{"step":[0,{"completed":{"n":2}}]},{"step":[1,{"started":{"attempt":1}}]}]',2103738548,'[[2,1795915781475920037,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(8,2,6,1795915781520060899,'[{"step":[1,{"completed":{"n":2}}]},{"step":[2,{"started":{"attempt":1}}]}]',4191684761,'[[5,1795915781499051623,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(10,2,9,1795915781545609981,'[{"step":[2,{"completed":{"sum":6}}]},{"job":"completed"}]',2954799939,'[[8,1795915781522857428,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(11,3,0,1795915781574513973,'[{"job":{"created":{"message":{"n":3}}}},{"step":[0,{"started":{"attempt":1}}]}]',4287857227,NULL,'["00000000-0000-4000-8000-000000000003",1,0,3,null,null,null,0,1795915781574474955]');
INSERT INTO "entries" VALUES(13,3,3,1795915781628646020,'[{"step":[0,{"completed":{"n":3}}]},{"step":[1,{"started":{"attempt":1}}]}]',2667340853,'[[2,1795915781589705526,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(15,3,6,1795915781657111771,'[{"step":[1,{"completed":{"n":3}}]},{"step":[2,{"started":{"attempt":1}}]}]',1753468236,'[[5,1795915781631735274,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(16,3,9,1795915781680254773,'[{"step":[2,{"failed":{"reason":"the worker reported an error: no"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: no","step":2}}}]',349211986,'[[8,1795915781661231825,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(17,4,0,1795915781706369035,'[{"job":{"created":{"message":{"n":4}}}},{"step":[0,{"started":{"attempt":1}}]}]',1557241813,NULL,'["00000000-0000-4000-8000-000000000004",1,0,4,null,null,null,0,1795915781706328855]');
INSERT INTO "entries" VALUES(18,5,0,1795915781708569580,'[{"job":{"created":{"message":{}}}},{"step":[0,{"started":{"attempt":1}}]}]',4152752792,NULL,'["00000000-0000-4000-8000-000000000011",2,0,5,null,null,null,0,1795915781708535439]');
INSERT INTO "entries" VALUES(19,5,3,1795915781761962020,'[{"step":[0,{"completed":{"sections":["x", "y"],"title":"t"}}]},{"fan_out":[1,{"started":{"items":2}}]},{"fan_out":[1,{"children_started":{"from":0,"count":2}}]}]',710659708,'[[2,1795915781727041030,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(21,6,0,1795915781772257117,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2970161127,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000000",2,1,5,5,1,0,1,1795915781772149447]');
INSERT INTO "entries" VALUES(22,7,0,1795915781772341242,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1832174438,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000001",2,1,5,5,1,1,1,1795915781772174124]');
INSERT INTO "entries" VALUES(24,6,3,1795915781824610265,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',3887087166,'[[2,1795915781788793265,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(25,6,6,1795915781880267936,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',3103809018,'[[5,1795915781868396620,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(26,7,3,1795915781880744944,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',2987131066,'[[2,1795915781788894015,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(27,5,6,1795915781900808417,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 1, "good": true}]}}]}]',1938015111,NULL,NULL);
INSERT INTO "entries" VALUES(28,7,6,1795915781924612570,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',1026363589,'[[5,1795915781924569927,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(29,5,7,1795915781928460290,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 1, "good": true}]}}]},{"fan_out":[1,"completed"]},{"step":[2,{"started":{"attempt":1}}]}]',3664567711,NULL,NULL);
INSERT INTO "entries" VALUES(30,5,11,1795915781944491038,'[{"step":[2,{"completed":{"kg":2}}]},{"job":"completed"}]',2009819040,'[[10,1795915781943857838,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(31,8,0,1795915781954877350,'[{"job":{"created":{"message":{"from":"a client"}}}},{"step":[0,{"started":{"attempt":1}}]}]',1522686670,NULL,'["00000000-0000-4000-8000-000000000010",2,0,8,null,null,null,0,1795915781954793205]');
INSERT INTO "entries" VALUES(32,8,3,1795915782004327230,'[{"step":[0,{"completed":{"sections":[1, 2, 3, 4, 5],"title":"t"}}]},{"fan_out":[1,{"started":{"items":5}}]},{"fan_out":[1,{"children_started":{"from":0,"count":5}}]}]',4108998489,'[[2,1795915781995208408,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(33,9,0,1795915782016771206,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1905504397,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000000",2,1,8,8,1,0,1,1795915782016632810]');
INSERT INTO "entries" VALUES(34,10,0,1795915782016834049,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1610876917,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000001",2,1,8,8,1,1,1,1795915782016651498]');
INSERT INTO "entries" VALUES(35,11,0,1795915782016840258,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1213971827,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000002",2,1,8,8,1,2,1,1795915782016655284]');
INSERT INTO "entries" VALUES(36,12,0,1795915782016847910,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',4053862406,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000003",2,1,8,8,1,3,1,1795915782016656926]');
INSERT INTO "entries" VALUES(37,13,0,1795915782016858285,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1912086271,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000004",2,1,8,8,1,4,1,1795915782016658498]');
INSERT INTO "entries" VALUES(38,9,3,1795915782045395001,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',423676977,'[[2,1795915782042631350,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(40,10,3,1795915782045755706,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',2514705687,'[[2,1795915782042698119,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(41,11,3,1795915782057930012,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1385990100,'[[2,1795915782042720813,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(43,9,6,1795915782058638704,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',1962100017,'[[5,1795915782056932832,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(45,10,6,1795915782059648302,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',3000077355,'[[5,1795915782058854043,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(46,8,6,1795915782059811214,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 2, "good": true}]}}]}]',895655562,NULL,NULL);
INSERT INTO "entries" VALUES(47,14,0,1795915782064805595,'[{"job":{"created":{"message":{"n":5}}}},{"step":[0,{"started":{"attempt":1}}]}]',3159750711,NULL,'["00000000-0000-4000-8000-000000000005",1,0,14,null,null,null,0,1795915782064769091]');
INSERT INTO "entries" VALUES(48,8,7,1795915782065004650,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 2, "good": true}]}}]}]',4067815682,NULL,NULL);
INSERT INTO "entries" VALUES(51,14,3,1795915782094474180,'[{"step":[0,{"completed":{"n":5}}]},{"step":[1,{"started":{"attempt":1}}]}]',2326184670,'[[2,1795915782078536891,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(52,14,5,1795915782096746222,'[{"job":{"asked":{"operation":"pause"}}},{"job":"paused"}]',1862337888,NULL,NULL);
INSERT INTO "entries" VALUES(53,15,0,1795915782109509221,'[{"job":{"created":{"message":{"n":6}}}},{"step":[0,{"started":{"attempt":1}}]}]',2587375504,NULL,'["00000000-0000-4000-8000-000000000006",1,0,15,null,null,null,0,1795915782109470324]');
INSERT INTO "entries" VALUES(54,15,3,1795915782133447784,'[{"job":{"asked":{"operation":"cancel"}}},{"job":{"cancelled":{"reason":"by a call of the API"}}}]',2732651850,'[[2,1795915782125893504,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(56,16,0,1795915782147434449,'[{"job":{"created":{"message":{"n":7}}}},{"step":[0,{"started":{"attempt":1}}]}]',4200691819,NULL,'["00000000-0000-4000-8000-000000000007",1,0,16,null,null,null,0,1795915782147391375]');
INSERT INTO "entries" VALUES(57,16,3,1795915782177059250,'[{"step":[0,{"completed":{"n":7}}]},{"step":[1,{"started":{"attempt":1}}]}]',3449197843,'[[2,1795915782173175837,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(58,16,6,1795915782213168062,'[{"step":[1,{"completed":{"n":7}}]},{"step":[2,{"started":{"attempt":1}}]}]',3332724314,'[[5,1795915782203322853,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(60,16,9,1795915782266482947,'[{"step":[2,{"failed":{"reason":"the worker reported an error: not yet"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: not yet","step":2}}}]',3611514663,'[[8,1795915782239395532,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(61,16,11,1795915782335980866,'[{"job":{"asked":{"operation":"retry"}}},{"job":{"retried":{"round":1}}},{"step":[2,{"started":{"attempt":2}}]}]',245461632,NULL,NULL);
INSERT INTO "entries" VALUES(62,17,0,1795915782342235217,'[{"job":{"created":{"message":{"never":false},"deadline":2111275782342235217}}},{"step":[0,{"started":{"attempt":1}}]},{"step":[1,"skipped"]}]',610680582,NULL,'["00000000-0000-4000-8000-000000000008",3,0,17,null,null,null,0,1795915782342196570]');
INSERT INTO "entries" VALUES(64,17,4,1795915782356559443,'[{"step":[0,{"attempt_failed":{"attempt":1,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1978456709331813617}}]}]',1728343737,'[[3,1795915782347694949,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(65,18,0,1795915782356702345,'[{"job":{"created":{"message":{"for":"a person"}}}},{"step":[0,{"started":{"attempt":1}}]}]',668976228,NULL,'["00000000-0000-4000-8000-000000000009",4,0,18,null,null,null,0,1795915782356549804]');
INSERT INTO "entries" VALUES(66,19,0,1795915782424663354,'[{"job":{"created":{"message":{"n":12}}}},{"caller":{"joined":{"reply_to":"answers","bus":"amqp","correlation_id":"mine"}}},{"step":[0,{"started":{"attempt":1}}]}]',132066818,NULL,'["00000000-0000-4000-8000-000000000012",1,0,19,null,null,null,0,1795915782424601788]');
INSERT INTO "entries" VALUES(67,20,0,1795915782496308690,'[{"job":{"created":{"message":{"parts":[1, 2]}}}},{"fan_out":[0,{"started":{"items":2}}]},{"fan_out":[0,{"children_started":{"from":0,"count":2}}]}]',552647734,NULL,'["00000000-0000-4000-8000-000000000015",5,0,20,null,null,null,0,1795915782492318103]');
INSERT INTO "entries" VALUES(69,21,0,1795915782505825412,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',930992333,NULL,'["c81a6a59-d3c4-8d30-98f7-4a0a00000000",5,1,20,20,0,0,1,1795915782504563985]');
INSERT INTO "entries" VALUES(70,22,0,1795915782505924459,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2984116697,NULL,'["c81a6a59-d3c4-8d30-98f7-4a0a00000001",5,1,20,20,0,1,1,1795915782504596663]');
INSERT INTO "entries" VALUES(71,21,3,1795915782537862742,'[{"step":[0,{"completed":{"part":"done"}}]},{"job":"completed"}]',1403910559,'[[2,1795915782529430820,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(73,20,3,1795915782549234728,'[{"fan_out":[0,{"child_completed":{"index":0,"item":[0,"done"]}}]}]',1805670744,NULL,NULL);
INSERT INTO "entries" VALUES(74,22,3,1795915782549744915,'[{"step":[0,{"failed":{"reason":"the worker reported an error: too thin"}}]},{"job":{"failed":{"reason":"step \"weld\": the worker reported an error: too thin","step":0}}}]',1883959675,'[[2,1795915782529328508,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(75,20,4,1795915782577207857,'[{"fan_out":[0,{"child_failed":{"index":1}}]},{"fan_out":[0,"completed"]},{"job":"completed"}]',3750570714,NULL,NULL);
INSERT INTO "entries" VALUES(76,23,0,1795915782604385457,'[{"job":{"created":{"message":{"n":13}}}},{"step":[0,{"started":{"attempt":1}}]}]',1362630408,NULL,'["00000000-0000-4000-8000-000000000013",6,0,23,null,null,null,0,1795915782604293816]');
INSERT INTO "entries" VALUES(77,24,0,1795915782608418151,'[{"job":{"created":{"message":{"n":14}}}},{"step":[0,{"started":{"attempt":1}}]}]',2277013259,NULL,'["00000000-0000-4000-8000-000000000014",7,0,24,null,null,null,0,1795915782608363445]');
INSERT INTO "entries" VALUES(79,1,5,1795915781455734974,'[{"step":[1,"confirmed"]}]',637164886,NULL,NULL);
INSERT INTO "entries" VALUES(80,4,2,1795915781761874530,'[{"step":[0,"confirmed"]}]',388664538,NULL,NULL);
INSERT INTO "entries" VALUES(81,11,5,1795915782060106011,'[{"step":[1,"confirmed"]}]',2817369773,NULL,NULL);
INSERT INTO "entries" VALUES(82,12,2,1795915782042730307,'[{"step":[0,"confirmed"]}]',1264333716,NULL,NULL);
INSERT INTO "entries" VALUES(83,13,2,1795915782042709676,'[{"step":[0,"confirmed"]}]',2733514587,NULL,NULL);
INSERT INTO "entries" VALUES(84,14,7,1795915782125568562,'[{"step":[1,"confirmed"]}]',4176630176,NULL,NULL);
INSERT INTO "entries" VALUES(85,16,14,1795915782338113431,'[{"step":[2,"confirmed"]}]',85893356,NULL,NULL);
CREATE TABLE failures(
  job INTEGER PRIMARY KEY,
  root INTEGER NOT NULL,
  reason INTEGER NOT NULL,
  workflow TEXT NOT NULL,
  ended INTEGER NOT NULL
) STRICT;
INSERT INTO "failures" VALUES(3,3,1515607387398087564,'chain',1795915781680254773);
INSERT INTO "failures" VALUES(22,20,532053231180610193,'lenient',1795915782549744915);
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795915781408492681,'running',NULL,1,706170118);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795915781473057540,'completed',1795915781545609981,0,4084707832);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795915781574474955,'failed',1795915781680254773,0,2543049723);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795915781706328855,'running',NULL,1,1752469424);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795915781708535439,'completed',1795915781944491038,0,2626357697);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795915781772149447,'completed',1795915781880267936,0,837143767);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795915781772174124,'completed',1795915781924612570,0,444389388);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795915781954793205,'running',NULL,1,1092032996);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795915782016632810,'completed',1795915782058638704,0,3352657513);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795915782016651498,'completed',1795915782059648302,0,2116182660);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795915782016655284,'running',NULL,1,4260817782);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795915782016656926,'running',NULL,1,1908113396);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795915782016658498,'running',NULL,1,3802610745);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795915782064769091,'paused',NULL,1,3496769700);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795915782109470324,'cancelled',1795915782133447784,0,3779102574);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795915782147391375,'running',NULL,1,282365622);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795915782342196570,'running',NULL,1,1375983653);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795915782356549804,'running',NULL,1,1860307143);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795915782424601788,'running',NULL,1,1541104095);
INSERT INTO "jobs" VALUES(20,X'00000000000040008000000000000015','lenient',5,0,20,NULL,NULL,NULL,0,1795915782492318103,'completed',1795915782577207857,0,2252246401);
INSERT INTO "jobs" VALUES(21,X'C81A6A59D3C48D3098F74A0A00000000','lenient',5,1,20,20,0,0,1,1795915782504563985,'completed',1795915782537862742,0,194216483);
INSERT INTO "jobs" VALUES(22,X'C81A6A59D3C48D3098F74A0A00000001','lenient',5,1,20,20,0,1,1,1795915782504596663,'failed',1795915782549744915,0,189822466);
INSERT INTO "jobs" VALUES(23,X'00000000000040008000000000000013','timed',6,0,23,NULL,NULL,NULL,0,1795915782604293816,'running',NULL,1,507301295);
INSERT INTO "jobs" VALUES(24,X'00000000000040008000000000000014','lent',7,0,24,NULL,NULL,NULL,0,1795915782608363445,'running',NULL,1,2173273298);
CREATE TABLE limit_rates(
  name TEXT NOT NULL,
  key TEXT NOT NULL,
  time INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(name, key)
) WITHOUT ROWID, STRICT;
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE places(
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY(job, first)
) WITHOUT ROWID, STRICT;
INSERT INTO "places" VALUES(1,0,1);
INSERT INTO "places" VALUES(1,3,3);
INSERT INTO "places" VALUES(2,0,4);
INSERT INTO "places" VALUES(2,3,7);
INSERT INTO "places" VALUES(2,6,8);
INSERT INTO "places" VALUES(2,9,10);
INSERT INTO "places" VALUES(3,0,11);
INSERT INTO "places" VALUES(3,3,13);
INSERT INTO "places" VALUES(3,6,15);
INSERT INTO "places" VALUES(3,9,16);
INSERT INTO "places" VALUES(4,0,17);
INSERT INTO "places" VALUES(5,0,18);
INSERT INTO "places" VALUES(5,3,19);
INSERT INTO "places" VALUES(5,6,27);
INSERT INTO "places" VALUES(5,7,29);
INSERT INTO "places" VALUES(5,11,30);
INSERT INTO "places" VALUES(6,0,21);
INSERT INTO "places" VALUES(6,3,24);
INSERT INTO "places" VALUES(6,6,25);
INSERT INTO "places" VALUES(7,0,22);
INSERT INTO "places" VALUES(7,3,26);
INSERT INTO "places" VALUES(7,6,28);
INSERT INTO "places" VALUES(8,0,31);
INSERT INTO "places" VALUES(8,3,32);
INSERT INTO "places" VALUES(8,6,46);
INSERT INTO "places" VALUES(8,7,48);
INSERT INTO "places" VALUES(9,0,33);
INSERT INTO "places" VALUES(9,3,38);
INSERT INTO "places" VALUES(9,6,43);
INSERT INTO "places" VALUES(10,0,34);
INSERT INTO "places" VALUES(10,3,40);
INSERT INTO "places" VALUES(10,6,45);
INSERT INTO "places" VALUES(11,0,35);
INSERT INTO "places" VALUES(11,3,41);
INSERT INTO "places" VALUES(12,0,36);
INSERT INTO "places" VALUES(13,0,37);
INSERT INTO "places" VALUES(14,0,47);
INSERT INTO "places" VALUES(14,3,51);
INSERT INTO "places" VALUES(14,5,52);
INSERT INTO "places" VALUES(15,0,53);
INSERT INTO "places" VALUES(15,3,54);
INSERT INTO "places" VALUES(16,0,56);
INSERT INTO "places" VALUES(16,3,57);
INSERT INTO "places" VALUES(16,6,58);
INSERT INTO "places" VALUES(16,9,60);
INSERT INTO "places" VALUES(16,11,61);
INSERT INTO "places" VALUES(17,0,62);
INSERT INTO "places" VALUES(17,4,64);
INSERT INTO "places" VALUES(18,0,65);
INSERT INTO "places" VALUES(19,0,66);
INSERT INTO "places" VALUES(20,0,67);
INSERT INTO "places" VALUES(20,3,73);
INSERT INTO "places" VALUES(20,4,75);
INSERT INTO "places" VALUES(21,0,69);
INSERT INTO "places" VALUES(21,3,71);
INSERT INTO "places" VALUES(22,0,70);
INSERT INTO "places" VALUES(22,3,74);
INSERT INTO "places" VALUES(23,0,76);
INSERT INTO "places" VALUES(24,0,77);
CREATE TABLE schedules(
  name TEXT PRIMARY KEY,
  ledger TEXT NOT NULL,
  checksum INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-29T01:29:41.408Z','2026-11-29T01:29:41.452Z','COMPLETED','PENDING','',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-29T01:29:41.473Z','2026-11-29T01:29:41.545Z','COMPLETED','COMPLETED','COMPLETED',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-29T01:29:41.574Z','2026-11-29T01:29:41.680Z','COMPLETED','COMPLETED','FAILED',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-29T01:29:41.706Z','2026-11-29T01:29:41.706Z','PENDING','','',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-29T01:29:42.064Z','2026-11-29T01:29:42.096Z','COMPLETED','PENDING','',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-29T01:29:42.109Z','2026-11-29T01:29:42.133Z','CANCELLED','','',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-29T01:29:42.147Z','2026-11-29T01:29:42.335Z','COMPLETED','COMPLETED','PENDING',NULL,NULL);
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-29T01:29:42.424Z','2026-11-29T01:29:42.424Z','PENDING','','',NULL,NULL);
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-29T01:29:41.708Z','2026-11-29T01:29:41.944Z','COMPLETED','COMPLETED','COMPLETED',NULL,NULL);
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-29T01:29:41.954Z','2026-11-29T01:29:42.004Z','COMPLETED','PENDING','',NULL,NULL);
CREATE TABLE "status_lenient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "parts" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_lenient" VALUES('00000000-0000-4000-8000-000000000015','completed','2026-11-29T01:29:42.492Z','2026-11-29T01:29:42.577Z','COMPLETED',NULL,NULL);
CREATE TABLE "status_lent"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "held" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_lent" VALUES('00000000-0000-4000-8000-000000000014','running','2026-11-29T01:29:42.608Z','2026-11-29T01:29:42.608Z','PENDING',NULL,NULL);
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-29T01:29:42.342Z','2026-11-29T01:29:42.342Z','PENDING','SKIPPED','',NULL,NULL);
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-29T01:29:42.356Z','2026-11-29T01:29:42.356Z','OPEN','',NULL,NULL);
CREATE TABLE "status_timed"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "slow" TEXT NOT NULL DEFAULT '', "schedule" TEXT, "slot" TEXT) STRICT;
INSERT INTO "status_timed" VALUES('00000000-0000-4000-8000-000000000013','running','2026-11-29T01:29:42.604Z','2026-11-29T01:29:42.604Z','PENDING',NULL,NULL);
CREATE TABLE trends(
  ring INTEGER NOT NULL,
  position INTEGER NOT NULL,
  -- Empty: all workflows together.
  workflow TEXT NOT NULL,
  start INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(ring, position, workflow)
) WITHOUT ROWID, STRICT;
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_top_by_state ON jobs(state, number) WHERE parent IS NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');
CREATE INDEX cells_by_value ON cells(name, value, workflow, job);
CREATE INDEX failures_by_reason ON failures(reason, root);
CREATE INDEX failures_by_end ON failures(ended, reason, workflow, root);
CREATE INDEX failures_of_workflow ON failures(workflow, ended, reason, root);
CREATE UNIQUE INDEX "index job of chain" ON "status_chain"("job");
CREATE INDEX "index state of chain" ON "status_chain"("state");
CREATE INDEX "index a of chain" ON "status_chain"("a");
CREATE INDEX "index b of chain" ON "status_chain"("b");
CREATE INDEX "index c of chain" ON "status_chain"("c");
CREATE UNIQUE INDEX "index job of gather" ON "status_gather"("job");
CREATE INDEX "index state of gather" ON "status_gather"("state");
CREATE INDEX "index split of gather" ON "status_gather"("split");
CREATE INDEX "index items of gather" ON "status_gather"("items");
CREATE INDEX "index join of gather" ON "status_gather"("join");
CREATE UNIQUE INDEX "index job of lenient" ON "status_lenient"("job");
CREATE INDEX "index state of lenient" ON "status_lenient"("state");
CREATE INDEX "index parts of lenient" ON "status_lenient"("parts");
CREATE UNIQUE INDEX "index job of lent" ON "status_lent"("job");
CREATE INDEX "index state of lent" ON "status_lent"("state");
CREATE INDEX "index held of lent" ON "status_lent"("held");
CREATE UNIQUE INDEX "index job of patient" ON "status_patient"("job");
CREATE INDEX "index state of patient" ON "status_patient"("state");
CREATE INDEX "index late of patient" ON "status_patient"("late");
CREATE INDEX "index never of patient" ON "status_patient"("never");
CREATE INDEX "index last of patient" ON "status_patient"("last");
CREATE UNIQUE INDEX "index job of person" ON "status_person"("job");
CREATE INDEX "index state of person" ON "status_person"("state");
CREATE INDEX "index review of person" ON "status_person"("review");
CREATE INDEX "index tell of person" ON "status_person"("tell");
CREATE UNIQUE INDEX "index job of timed" ON "status_timed"("job");
CREATE INDEX "index state of timed" ON "status_timed"("state");
CREATE INDEX "index slow of timed" ON "status_timed"("slow");
DELETE FROM "sqlite_sequence";
COMMIT;
